"""When a join under the launcher starts again, and when it is let go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch

from multiworld.errors import JoinError, JoinRefusedError
from multiworld.wire.progress.operation import Operation, drive
from multiworld.world.joining.elastic_join import ElasticJoin
from multiworld.world.joining.formation import Formation
from multiworld.world.joining.join_request import JoinRequest, JoinTarget
from multiworld.world.launcher.link import LaunchLink
from multiworld.world.launcher.process_link import open_link, release_link
from multiworld.world.world import World
from tests.unit.elastic.launching_agent import Agent, agent_of, eventually

pytestmark = pytest.mark.usefixtures("no_leaks")

HERE, THERE = "tcp://127.0.0.1:1", "tcp://127.0.0.1:2"
WORLD = cast(World, object())


class FakeFormation:
    """Keeps what each try went by, and lets the test end the tries."""

    def __init__(self) -> None:
        self.is_connecting = False
        self.targets: list[JoinTarget | None] = []
        self.tries: list[Operation[World]] = []

    def aim(self, target: JoinTarget | None, waits_for: str = "") -> None:
        self.targets.append(target)

    async def attempt(self) -> World:
        self.tries.append(Operation())
        return await self.tries[-1]


class Case:
    """One join of a worker at rank 0 of 2, under way."""

    def __init__(self, agent: Agent, link: LaunchLink, **asked: Any) -> None:
        self.formation = FakeFormation()
        fields = {"rank": None, "world_size": None, "store_url": None, **asked}
        request = JoinRequest(name="w", backend="tcp", device=torch.device("cpu"), timeout_s=30.0, **fields)
        following = ElasticJoin(request, cast(Formation, self.formation), link, agent.loop)
        agent.place("a", 0, 2, HERE)
        eventually(lambda: link.place is not None)
        self.joining = drive(following.form(self.formation.attempt))

    def tried_by(self, **fields: Any) -> Callable[[], bool]:
        """Whether the present try is the first one that goes by that, and the others were given up."""

        def is_so() -> bool:
            target, tries = self.formation.targets[-1], self.formation.tries
            is_present = target is not None and all(getattr(target, name) == value for name, value in fields.items())
            return is_present and len(tries) == 2 and tries[0].done and not tries[1].done

        return is_so

    def ends_with(self, world: World) -> bool:
        self.formation.tries[-1].succeed(world)
        return self.joining.done and self.joining.result() is world


@pytest.fixture
def agent() -> Iterator[Agent]:
    with agent_of() as agent:
        yield agent


@pytest.fixture
def link(agent: Agent) -> Iterator[LaunchLink]:
    link = open_link(agent.launch_of("a"))
    yield link
    release_link(link)


@pytest.mark.parametrize("change", [{"rank": 1}, {"world_size": 3}, {"generation": 2}, {"store": THERE}])
def test_a_try_is_given_up_when_its_place_changes(agent: Agent, link: LaunchLink, change: dict[str, Any]) -> None:
    case = Case(agent, link)
    agent.place("a", **{"rank": 0, "world_size": 2, "store": HERE, **change})
    names = {"generation": "membership", "store": "store_url"}
    eventually(case.tried_by(**{names.get(name, name): value for name, value in change.items()}))
    eventually(lambda: case.ends_with(WORLD))


@pytest.mark.parametrize("store", [THERE, ""])
def test_members_that_have_met_connect_to_the_end_when_only_the_store_moves(
    agent: Agent, link: LaunchLink, store: str
) -> None:
    case = Case(agent, link)
    case.formation.is_connecting = True
    agent.place("a", 0, 2, store)
    agent.place("a", 0, 2, store, restarts=1)
    eventually(lambda: link.place is not None and link.place.restarts == 1)
    assert len(case.formation.tries) == 1
    eventually(lambda: case.ends_with(WORLD))


def test_members_that_could_not_connect_meet_at_the_store_that_is_there_then(agent: Agent, link: LaunchLink) -> None:
    case = Case(agent, link)
    case.formation.is_connecting = True
    agent.place("a", 0, 2, THERE)
    eventually(lambda: link.place is not None and link.place.store == THERE)
    case.formation.is_connecting = False
    eventually(case.tried_by(store_url=THERE))
    eventually(lambda: case.ends_with(WORLD))


def test_members_that_have_met_start_again_in_another_membership(agent: Agent, link: LaunchLink) -> None:
    case = Case(agent, link)
    case.formation.is_connecting = True
    agent.place("a", 0, 2, HERE, generation=2)
    eventually(case.tried_by(membership=2))
    eventually(lambda: case.ends_with(WORLD))


def test_what_the_caller_has_given_does_not_move(agent: Agent, link: LaunchLink) -> None:
    case = Case(agent, link, rank=1, world_size=2)
    agent.place("a", 0, 3, HERE, generation=2)
    agent.place("a", 0, 3, THERE, generation=3)
    eventually(case.tried_by(rank=1, world_size=2, store_url=THERE, membership=None))
    eventually(lambda: case.ends_with(WORLD))


def test_a_place_that_does_not_fit_what_was_given_ends_the_join(agent: Agent, link: LaunchLink) -> None:
    case = Case(agent, link, rank=1)
    agent.place("a", 0, 1, HERE, generation=2)
    eventually(lambda: isinstance(case.joining.error, JoinRefusedError))
    assert case.formation.tries[0].done


def test_a_world_that_was_formed_just_before_the_agent_died_is_not_lost(agent: Agent, link: LaunchLink) -> None:
    case = Case(agent, link)
    case.formation.tries[0].succeed(WORLD)
    agent.close()
    eventually(lambda: case.joining.done)
    assert case.joining.result() is WORLD


def test_a_join_ends_with_its_agent(agent: Agent, link: LaunchLink) -> None:
    case = Case(agent, link)
    agent.on_loop(agent.port.close)
    eventually(lambda: type(case.joining.error) is JoinError)
    assert case.formation.tries[0].done
