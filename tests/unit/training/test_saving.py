"""When a state is saved, and who is asked for one to begin with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from multiworld.training.checkpoint.config import Checkpoint
from multiworld.training.checkpoint.keeper import CheckpointKeeper
from multiworld.training.engine.decision import Outcome
from multiworld.training.engine.facts import Facts
from multiworld.training.engine.services import Services
from multiworld.training.options import TrainingOptions
from multiworld.training.pipeline.assignment import AssignedPipeline, Assignment
from multiworld.training.recovery.records import Generation, Member
from multiworld.training.recovery.team import Team
from multiworld.training.replica.replica import Replica
from multiworld.training.saving import Saving
from multiworld.training.state import TrainingState

MEMBERS = tuple(Member(id=name, rank=rank, host="h") for rank, name in enumerate("abcd"))
GENERATION = Generation(number=3, members=MEMBERS, stateless=("d",))
FACTS = [Facts(step=1, is_ready=member.id != "d") for member in MEMBERS]


class Keeper:
    """What the keeper of checkpoints was told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def saved_step(self) -> int:
        return 7

    def restart(self, most: int | None = None) -> None:
        self.told.append(("restart", most))

    def on_members(self, generation: int, members: Sequence[str], writers: Sequence[str] | None = None) -> None:
        self.told.append(("members", generation, list(members), None if writers is None else list(writers)))

    def after_step(self, since: int, *, asked: bool = False) -> None:
        self.told.append(("step", since, asked))


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Saving]:
    def make(replica_size: int = 1, **options: Any) -> Saving:
        replica = Replica("gpt", 0, replica_size, cast(Any, None))
        chosen = TrainingOptions(name="gpt", replica_size=replica_size, **options)
        return Saving(chosen, replica, member="a", state=TrainingState(), publish=lambda *_, **__: None)

    return make


@pytest.fixture
def kept(made: Callable[..., Saving], tmp_path: Path) -> tuple[Saving, Keeper]:
    saving, keeper = made(checkpoint=Checkpoint(tmp_path)), Keeper()
    saving._keeper = cast(CheckpointKeeper, keeper)
    return saving, keeper


def committed(saving: Saving, generation: Generation = GENERATION, *, save: bool = False) -> None:
    saving.committed(cast(Team, None), generation, FACTS, Outcome(save=save))


def test_without_a_checkpoint_nothing_is_kept_and_the_engine_has_nothing_to_ask(made: Callable[..., Saving]) -> None:
    saving, services = made(), Services()
    saving.attach(services)
    committed(saving)
    saving.applied(3)
    saving.end(is_complete=True, has_failed=False)
    saving.close(is_complete=True, has_failed=False)
    assert not saving.has_place
    assert (services.saved_step(), services.own_facts(1)) == (-1, {})


def test_who_asks_for_a_checkpoint_tells_the_others_until_all_have_heard(kept: tuple[Saving, Keeper]) -> None:
    saving, keeper = kept
    services = Services()
    saving.attach(services)
    assert services.own_facts(1) == {}
    saving.ask()
    assert services.own_facts(1) == {"save": True}
    committed(saving)  # the others have not heard yet
    assert services.own_facts(2) == {"save": True}
    committed(saving, save=True)
    saving.applied(2)
    assert services.own_facts(3) == {}
    assert keeper.told[-1] == ("step", 2, True)


def test_the_engine_begins_with_what_is_on_disk(kept: tuple[Saving, Keeper]) -> None:
    saving, keeper = kept
    services = Services()
    saving.attach(services)
    assert services.saved_step() == 7
    services.restart(None)
    assert keeper.told == [("restart", None)]


def test_a_step_after_which_no_state_can_be_saved_is_left_out(kept: tuple[Saving, Keeper]) -> None:
    saving, keeper = kept
    saving.applied(None)
    assert not keeper.told


def test_those_with_the_state_write_and_of_pipelines_the_members_of_the_first(kept: tuple[Saving, Keeper]) -> None:
    saving, keeper = kept
    committed(saving)
    pipelines = tuple(
        AssignedPipeline(members=members, starts=(0, 1), num_micro_batches=1, max_in_flight=(2, 1))
        for members in (("c", "b"), ("a", "d"))
    )
    assignment = Assignment(num_layers=2, pipelines=pipelines)
    committed(saving, Generation(number=4, members=MEMBERS, assignment=assignment))
    assert keeper.told == [("members", 3, ["a", "b", "c"], None), ("members", 4, ["a", "b", "c"], ["c", "b"])]
