"""The decisions of the demo of training: whom to kill, whether it held, and how the curve looks."""

from __future__ import annotations

import pytest

from multiworld.demo.training.curve import draw_curve
from multiworld.demo.training.options import TrainingDemoOptions
from multiworld.demo.training.plan import plan_kills
from multiworld.demo.training.records import Begun, Done, Finished, Record, decode, encode
from multiworld.demo.training.report import Kill, Report, Run

BATCH = 32


def done(rank: int, step: int, at: float, *, pid: int | None = None, loss: float | None = None) -> Done:
    loss = 5.0 - step if loss is None else loss
    pid = 10 + rank if pid is None else pid
    return Done(rank=rank, pid=pid, at=at, step=step, loss=loss, replicas=2, redone=0, num_samples=BATCH)


def finished(rank: int, digest: str = "d") -> Finished:
    return Finished(rank=rank, pid=10 + rank, at=9.0, digest=digest)


def judge(records: list[Record], kills: list[Kill]) -> Report:
    alone = Run(records=[*(done(0, step, float(step)) for step in range(3)), finished(0)])
    disturbed = Run(records=records, kills=kills)
    return Report(alone=alone, disturbed=disturbed, steps=3, replicas=2, global_batch=BATCH, num_kills=len(kills))


KILL = Kill(rank=1, pid=11, at=1.5, step=1)
GOOD: list[Record] = [
    *(done(0, step, float(step)) for step in range(3)),
    *(done(1, step, float(step)) for step in range(2)),
    Begun(rank=1, pid=21, at=2.5, step=2),
    done(1, 2, 2.5, pid=21),
    finished(0),
    finished(1),
]


def test_the_seed_decides_the_kills_and_all_lie_in_the_first_half() -> None:
    options = TrainingDemoOptions(seed=7)
    plan = plan_kills(options)
    assert plan == plan_kills(options) != plan_kills(TrainingDemoOptions(seed=8))
    steps = [each.step for each in plan]
    assert steps == sorted(set(steps))
    assert len(steps) == options.kills
    assert max(steps) < options.steps / 2
    assert plan[0].pick([3]) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [({"steps": 3}, "steps must lie"), ({"replicas": 9}, "8 micro-batches"), ({"kills": 13}, "room for one kill")],
)
def test_impossible_options_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainingDemoOptions(**options)


def test_a_record_survives_its_line() -> None:
    for record in GOOD:
        assert decode(encode(record)) == record


def test_a_training_with_the_losses_of_the_undisturbed_one_holds() -> None:
    report = judge(GOOD, [KILL])
    assert report.holds
    assert report.disturbed.pauses_s() == [0.5]
    assert report.disturbed.returns_s() == [1.0]


@pytest.mark.parametrize(
    ("records", "failed"),
    [
        ([each for each in GOOD if getattr(each, "step", 0) != 2], "steps that count"),
        ([*GOOD[:-2], done(0, 2, 2.0, loss=3.5), finished(0), finished(1)], "loss of each step as without kills"),
        ([*GOOD[:-1], finished(1, "e")], "parameters as without kills"),
        (GOOD[:-1], "replicas that finished"),
        ([each for each in GOOD if each.pid != 21], "replacement had done a step after"),
    ],
)
def test_what_differs_does_not_hold(records: list[Record], failed: str) -> None:
    report = judge(records, [KILL])
    assert not report.holds
    assert failed in [check.name for check in report.checks() if check.holds is False]


def test_the_loss_of_a_step_that_only_a_killed_replica_finished_does_not_count() -> None:
    ahead = done(1, 2, 1.4, loss=99.0)
    assert judge([ahead, *GOOD], [KILL]).holds


def test_a_curve_falls_from_left_to_right_and_marks_the_kills() -> None:
    assert draw_curve([4.0, 3.0, 2.0, 1.0], {2}, width=4, height=2) == [
        " 4.000 █▃",
        " 1.000 ██▆▁",
        "       ··x·",
    ]
    assert draw_curve([], {1}) == []
