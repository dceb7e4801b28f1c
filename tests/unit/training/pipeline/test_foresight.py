"""Plans that another process makes in advance: what is asked for, what comes back, and what is forgotten."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from multiworld.training.pipeline.experience import Experience
from multiworld.training.pipeline.foresight import WORTH_IT, Foresight, Order, losses_to_foresee
from multiworld.training.pipeline.planner import Planner
from multiworld.training.planning.changes.conditions import Conditions, Policy
from multiworld.training.planning.changes.foreseen import Foreseen, Outcome
from multiworld.training.planning.changes.reconfiguration import start
from multiworld.training.recovery.records import Generation

from .test_planner import MEMBERS, begun, templates

IDS = tuple(each.id for each in MEMBERS)


def order(generation: int = 1) -> Order:
    made, conditions = templates(), Conditions(tolerate=1, num_micro_batches=16)
    plan = start(IDS, made, conditions).plan
    return Order(generation=generation, lost=IDS[1:], plan=plan, templates=made, conditions=conditions)


def waited_for(foresight: Foresight, generation: int, lost: str) -> Outcome:
    while (outcome := foresight.outcome(generation, lost)) is None:  # the test has a time limit
        time.sleep(0.01)
    return outcome


@pytest.fixture
def foresight() -> Iterator[Foresight]:
    with contextlib.closing(Foresight()) as made:
        yield made


def test_members_that_would_propose_foresee_the_losses_after_which_they_do() -> None:
    members, few = [f"m{index}" for index in range(64)], WORTH_IT // 64 - 1
    assert losses_to_foresee(members, "m0", few + 1) == tuple(members[1:])
    assert losses_to_foresee(members, "m1", few + 1) == ("m0",)
    assert losses_to_foresee(members, "m2", few + 1) == ()
    assert losses_to_foresee(members, "m0", few) == ()  # a plan is made quickly


def test_plans_that_were_made_in_advance_are_those_that_would_be_made(foresight: Foresight) -> None:
    asked = order()
    foresight.begin(asked)
    expected = Foreseen(asked.plan, asked.templates, asked.conditions)
    for lost in (IDS[1], IDS[-1]):
        assert waited_for(foresight, 1, lost) == expected.outcome(lost)
    assert foresight.outcome(1, IDS[0]) is None  # was not asked for
    assert foresight.outcome(2, IDS[1]) is None


def test_another_generation_forgets_what_was_planned_before(foresight: Foresight) -> None:
    foresight.begin(order(1))
    waited_for(foresight, 1, IDS[1])
    foresight.begin(order(2))
    assert foresight.outcome(1, IDS[1]) is None
    waited_for(foresight, 2, IDS[-1])
    foresight.forget()
    assert foresight.outcome(2, IDS[-1]) is None


def test_a_process_that_is_killed_costs_nothing_but_the_plans(foresight: Foresight) -> None:
    foresight.begin(order())
    waited_for(foresight, 1, IDS[1])
    assert foresight.pid is not None
    os.kill(foresight.pid, signal.SIGKILL)
    while foresight.pid is not None:
        foresight.outcome(1, "nobody")
        time.sleep(0.01)
    foresight.begin(order(2))
    assert foresight.outcome(2, IDS[1]) is None


def test_no_process_is_started_before_there_is_something_to_plan(foresight: Foresight) -> None:
    foresight.forget()
    assert foresight.pid is None


class Prepared(Foresight):
    """Has plans at once, and notes which it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.order: Order | None = None

    def begin(self, order: Order) -> None:
        self.order = order

    def outcome(self, generation: int, lost: str) -> Outcome | None:
        if self.order is None or generation != self.order.generation:
            return None
        self.asked.append(lost)
        outcome = Foreseen(self.order.plan, self.order.templates, self.order.conditions).outcome(lost)
        packed: Outcome = pickle.loads(pickle.dumps(outcome))  # it comes from another process
        return packed


def after(before: Generation, *lost: str, lacks: str = "") -> Generation:
    assert before.assignment is not None
    left = tuple(each for each in before.members if each.id not in lost)
    layers = {each.id: before.assignment.layers_of(each.id) for each in left if each.id != lacks}
    return Generation(number=before.number + 1, members=left, layers=layers)


def test_a_proposer_takes_the_plan_that_was_made_in_advance() -> None:
    prepared, before = Prepared(), begun()
    planner = Planner(templates(), tolerate=1, num_micro_batches=WORTH_IT // 8, foresight=prepared)
    before = planner.complete(replace(before, assignment=None, layers={each: tuple(range(6)) for each in IDS}), None)
    planner.foresee(before, IDS[0])

    assert prepared.order is not None
    assert prepared.order.conditions.operation_s == 0.0  # nobody waits for it

    made = planner.complete(after(before, IDS[3]), before)
    assert prepared.asked == [IDS[3]]
    alone = Planner(templates(), tolerate=1, num_micro_batches=WORTH_IT // 8).complete(after(before, IDS[3]), before)
    assert made.assignment == alone.assignment


def test_a_rerouted_plan_that_was_made_in_advance_has_the_orders_of_all_members() -> None:
    slow = Experience(now=time.monotonic())
    slow.moved(1, 1000.0)
    prepared, few = Prepared(), IDS[:8]
    members = MEMBERS[:8]
    planners = [
        Planner(templates(), tolerate=1, num_micro_batches=WORTH_IT // 8, experience=slow, foresight=each)
        for each in (prepared, None)
    ]
    first = Generation(number=1, members=members, layers={each: tuple(range(6)) for each in few})
    before = planners[0].complete(first, None)
    planners[0].foresee(before, IDS[0])
    made, alone = (each.complete(after(before, IDS[3]), before).assignment for each in planners)
    assert prepared.asked == [IDS[3]]
    assert made is not None
    assert made.policy == Policy.REROUTE.value
    assert len(made.orders) == 7
    assert made == alone


def test_two_losses_and_members_without_their_layers_are_planned_for_anew() -> None:
    prepared = Prepared()
    planner = Planner(templates(), tolerate=1, num_micro_batches=WORTH_IT // 8, foresight=prepared)
    before = planner.complete(replace(begun(), assignment=None, layers={each: tuple(range(6)) for each in IDS}), None)
    planner.foresee(before, IDS[0])
    planner.complete(after(before, IDS[3], IDS[4]), before)
    planner.complete(after(before, IDS[3], lacks=IDS[5]), before)
    planner.complete(after(replace(before, number=7), IDS[3]), replace(before, number=7))
    assert not prepared.asked
