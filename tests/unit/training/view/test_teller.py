"""What the launcher is told: by one member, seldom of steps, always of changes."""

from __future__ import annotations

import math

import pytest

from multiworld.training.events import MembershipChanged, TrainingEnded
from multiworld.training.view.teller import STEPS_S, Teller
from multiworld.world.launcher.news import (
    MAX_TEXT,
    WORKER_NEWS,
    Trained,
    TrainingFault,
    TrainingNews,
    TrainingPipelines,
)

from .runs import STEP_S, Run


def by_member(run: Run) -> dict[str, list[TrainingNews]]:
    """Return what each member tells, by its id."""
    found: dict[str, list[TrainingNews]] = {}
    for member, its in run.events.items():
        teller = Teller()
        found[member] = [news for event in its for news in teller.take(event, now=event.at)]
    return found


def told(run: Run) -> list[TrainingNews]:
    """Return what all members tell, in the order of time."""
    tellers = {member: Teller() for member in run.events}
    return [news for event in run.in_order() for news in tellers[event.member].take(event, now=event.at)]


def test_only_the_lowest_rank_tells_and_at_most_twice_a_second() -> None:
    run = Run(num_members=200).steps(40)
    found = by_member(run)

    assert [member for member, news in found.items() if news] == ["m001"]
    assert len(found["m001"]) <= 40 * STEP_S / STEPS_S + 1
    last = found["m001"][-1]
    assert isinstance(last, Trained)
    assert (last.name, last.replicas, last.value_name) == ("gpt", 200, "loss")
    assert last.value == pytest.approx(4 * math.exp(-last.step / 40) + 0.5)


def test_a_failure_is_told_when_it_is_known_and_when_it_is_over() -> None:
    faults = [each for each in told(Run().steps(5).lose(2).steps(5)) if isinstance(each, TrainingFault)]

    assert [(each.change, each.step, each.replicas, each.took_s is None) for each in faults] == [
        ("failure", 5, 2, True),
        ("failure", 5, 2, False),
    ]
    assert len({each.key for each in faults}) == 1
    assert faults[0].text == "rank 2 was lost (PeerDiedError: its socket closed)"
    assert list(faults[1].phases) == ["detect", "agree", "form", "redo"]
    assert faults[1].took_s == pytest.approx(0.185, abs=0.001)
    assert faults[1].redone == 2


def test_the_next_member_tells_of_the_loss_of_the_one_that_told() -> None:
    found = by_member(Run().steps(5).lose(0).steps(20))

    assert [type(each) for each in found["m002"][:3]] == [TrainingFault, TrainingFault, Trained]
    assert found["m003"] == []


def test_a_join_is_told_by_those_that_were_there() -> None:
    found = by_member(Run().steps(5).lose(0).join(0).steps(5))

    assert [each.change for each in found["m002"] if isinstance(each, TrainingFault)] == ["failure"] * 2 + ["join"] * 2
    assert found["m004"] == []


def test_replicas_of_several_processes_are_counted_as_replicas() -> None:
    run = Run(num_members=4).steps(3)
    for each in run.events["m001"]:
        if hasattr(each, "replicas"):
            object.__setattr__(each, "replicas", 2)
    run.members = {rank: run.members[rank] for rank in (0, 1)}
    run.generation = 2
    for rank in (0, 1):
        run.say(rank, MembershipChanged, step=3, ranks=(0, 1), gone=(2, 3))
    (fault,) = (each for each in by_member(run)["m001"] if isinstance(each, TrainingFault))

    assert (fault.text, fault.replicas) == ("ranks 2, 3 left", 1)


def test_the_start_and_steps_alone_are_no_change() -> None:
    assert not any(isinstance(each, TrainingFault) for each in told(Run().steps(30).end()))


def test_the_end_is_told_with_its_reason() -> None:
    run = Run().steps(3)
    for rank in run.members:
        run.say(rank, TrainingEnded, step=2, error="PoisonedStepError: step 3 " + "x" * 1000)
    last = told(run)[-1]

    assert isinstance(last, Trained)
    assert last.ended
    assert last.reason.startswith("PoisonedStepError")
    assert len(last.reason) == MAX_TEXT


def test_all_that_is_told_fits_the_wire_however_long_the_texts_are() -> None:
    run = Run(job="g" * 500).steps(2).lose(1, cause="Lost\N{PILE OF POO}" * 300).steps(2)

    assert all(WORKER_NEWS.decode(WORKER_NEWS.encode(each)) == each for each in told(run))
    assert max(len(WORKER_NEWS.encode(each)) for each in told(run)) < 16 * 1024


def test_a_loss_that_is_not_finite_is_told_as_such() -> None:
    run = Run(num_members=1).steps(1)
    object.__setattr__(run.events["m001"][-1], "values", {"loss": math.nan})
    (news,) = told(run)

    assert isinstance(news, Trained)
    assert (news.value, news.is_finite) == (None, False)


def test_pipelines_are_told_once_for_each_generation_and_before_the_fault() -> None:
    news = told(Run(num_members=5, has_pipelines=True).steps(5).lose(0).steps(5))
    formed = [each for each in news if isinstance(each, TrainingPipelines)]
    first_fault = next(number for number, each in enumerate(news) if isinstance(each, TrainingFault))

    assert [(each.generation, each.step, each.replicas) for each in formed] == [(1, 0, 5), (2, 5, 4)]
    assert news[first_fault - 1] is formed[1]
    assert [each.ranks for each in formed[1].pipelines] == [(1, 2), (3, 4)]
    assert WORKER_NEWS.decode(WORKER_NEWS.encode(formed[1])) == formed[1]
