"""What one member says of its health, and hears of that of the others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from multiworld.training.engine.decision import decide
from multiworld.training.engine.facts import Facts
from multiworld.training.errors import BadStepError, MiscomputingError
from multiworld.training.health.bad_steps import MAX_IN_A_ROW, OnBadStep
from multiworld.training.health.monitor import HealthMonitor, are_finite
from multiworld.training.health.options import Health, Replay
from multiworld.training.recovery.records import Member
from multiworld.training.state import TrainingState

MEMBERS = [Member(id=f"m{rank}", rank=rank, host="here") for rank in range(3)]


class Trained:
    """A member with a model, whose events are kept."""

    def __init__(self, on_bad_step: OnBadStep | None = None, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.state = TrainingState()
        self.state.add("model.0", self.model)
        self.state.add("optimizer.0", self.optimizer)
        self.told: list[tuple[str, dict[str, Any]]] = []
        replay, shard = options.pop("replay", None), options.pop("shard", None)
        self.monitor = HealthMonitor(
            Health(**options),
            on_bad_step,
            replay,
            parameters=dict(self.model.named_parameters()),
            buffers=dict(self.model.named_buffers()),
            optimizers=[self.optimizer],
            state=self.state,
            publish=lambda kind, **fields: self.told.append((kind.__name__, fields)),
            rank=lambda: 0,
            has_scaler=False,
            shard=shard,
        )

    def digests(self, steps: int) -> dict[str, str]:
        found: dict[str, str] = {}
        for step in range(steps):
            self.monitor.began(step)
            found.update(self.monitor.own_facts(step, []).get("digests", {}))
        return found

    def heard(self, step: int, loss: float, *, is_finite: bool = True) -> bool:
        facts = [Facts(step=step, done=(rank,), values={"loss": (loss,)}, is_finite=is_finite) for rank in range(3)]
        return self.monitor.skips(step, MEMBERS, decide(facts), facts)


def test_everything_is_compared_within_the_interval_and_a_change_is_seen() -> None:
    one, other = Trained(compare_every=4), Trained(compare_every=4)
    found = one.digests(4)
    assert set(found) == {name for name, _ in [*one.model.named_parameters(), *one.model.named_buffers()]}
    assert other.digests(4) == found
    with torch.no_grad():
        other.model.get_parameter("2.weight").view(torch.int32)[0, 1] ^= 1
    changed = other.digests(4)
    assert [name for name in found if changed[name] != found[name]] == ["2.weight"]


def test_optimizers_are_compared_on_choice_once_they_have_a_state() -> None:
    one = Trained(compare=("optimizers",), compare_every=2)
    assert one.digests(2) == {}
    one.model(torch.ones(2, 3)).sum().backward()
    one.optimizer.step()
    assert set(one.digests(2)) == {f"optimizer.0.{index}.momentum_buffer" for index in range(6)}


def test_digests_of_another_step_are_not_told() -> None:
    one = Trained(compare_every=1)
    one.monitor.began(4)
    assert one.monitor.own_facts(5, []) == {}
    assert Trained(compare_every=0).digests(9) == {}


def test_divergence_that_nobody_can_decide_is_told_once() -> None:
    one = Trained()
    facts = [Facts(step=1, digests={"w": value}) for value in "ab"]
    for step in range(3):
        assert one.monitor.wrong(step, MEMBERS[:2], facts) == set()
    ((kind, fields),) = one.told
    assert (kind, fields["name"], fields["wrong"], fields["differing"]) == ("ReplicasDiverged", "w", (), (0, 1))


def test_a_wrong_part_of_a_replica_of_several_processes_is_only_named() -> None:
    one = Trained(shard=1, compare_every=1)
    one.monitor.began(0)
    assert all(name.startswith("shard 1: ") for name in one.monitor.own_facts(0, [])["digests"])
    facts = [Facts(step=1, digests={"shard 1: w": value}) for value in "aba"]
    assert one.monitor.wrong(1, MEMBERS, facts) == set()
    assert one.told[0][1]["wrong"] == (1,)
    assert one.told[0][1]["removed"] == ()


def test_a_member_that_is_wrong_a_second_time_ends() -> None:
    one = Trained()
    one.monitor.given_up(3)
    with pytest.raises(MiscomputingError, match="rank 0 is wrong again in step 9"):
        one.monitor.given_up(9)


def test_a_bad_step_is_only_told_where_nothing_was_chosen() -> None:
    one = Trained()
    assert one.heard(0, float("nan")) is False
    assert [(kind, fields["action"]) for kind, fields in one.told] == [("BadStep", "report")]


def test_bad_steps_are_skipped_until_that_helps_no_more() -> None:
    one = Trained("skip")
    assert not one.heard(0, 1.0)
    for step in range(1, MAX_IN_A_ROW):
        assert one.heard(step, 1.0, is_finite=False)
    with pytest.raises(BadStepError, match=f"as were the {MAX_IN_A_ROW - 1} before"):
        one.heard(MAX_IN_A_ROW, 1.0, is_finite=False)


def test_a_rollback_brings_the_state_back_and_a_newcomer_can_do_it_too() -> None:
    one, newcomer = Trained("rollback", snapshot_every=5), Trained("rollback", snapshot_every=5)
    assert not one.heard(0, 1.0)
    before = {name: value.clone() for name, value in one.model.state_dict().items()}
    with torch.no_grad():
        for parameter in one.model.parameters():
            parameter.add_(1.0)
    newcomer.state.restore(one.state.capture())
    for each in (one, newcomer):
        assert each.heard(3, float("inf"))
        assert each.told[-1][1]["back_to"] == 0
        for name, value in each.model.state_dict().items():
            assert torch.equal(value, before[name])


def test_a_micro_batch_is_repeated_in_one_step_of_so_many() -> None:
    one = Trained(replay=Replay(every=3))
    assert [step for step in range(9) if one.monitor.repeats(step)] == [2, 5, 8]
    assert not any(Trained().monitor.repeats(step) for step in range(9))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_one_value_that_is_not_finite_is_found(dtype: torch.dtype) -> None:
    values = torch.full((4000,), 1000.0, dtype=dtype)
    assert are_finite([values, torch.ones(3, dtype=torch.int64)])
    for bad in (torch.nan, torch.inf, -torch.inf):
        values[7] = bad
        assert not are_finite([torch.ones(2), values])


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="compare_every=-1"):
        Health(compare_every=-1)
    with pytest.raises(ValueError, match="'gradients'"):
        Health(compare=("gradients",))
    with pytest.raises(ValueError, match="every=0"):
        Replay(every=0)
    with pytest.raises(ValueError, match="snapshot_every=0"):
        Health(snapshot_every=0)
