"""Goodput and its losses: each second of the wall time has one cause."""

from __future__ import annotations

import pytest

from multiworld.training.events import StepCommitted, TrainingEvent, TrainingStarted
from multiworld.training.view.goodput import (
    CHECKPOINT,
    DATA,
    FAILURES,
    OUTSIDE,
    REDO,
    ROLLBACK,
    SLOW,
    START,
    Account,
    LiveGoodput,
    account_of,
    commits_of,
    shares,
)
from multiworld.training.view.recoveries import recoveries_of

from .runs import Run


def account(events: list[TrainingEvent]) -> Account:
    found = account_of(events, recoveries_of(events))
    assert found.good_s + sum(found.losses.values()) == pytest.approx(found.wall_s)
    return found


def test_nothing_has_no_goodput() -> None:
    assert account([]).goodput == 0.0


def test_steps_without_a_fault_are_good_but_for_the_start_and_the_data() -> None:
    found = account(Run().steps(40).in_order())

    assert found.wall_s == pytest.approx(3.0)
    assert found.losses[START] == pytest.approx(1.0)
    assert found.losses[DATA] == pytest.approx(40 * 0.005)
    assert found.good_s == pytest.approx(40 * 0.045)
    assert found.goodput == pytest.approx(0.6)
    assert (found.num_steps, found.num_samples) == (40, 40 * 64)
    assert found.mean_replicas == pytest.approx(3.0)
    assert found.samples_per_s == pytest.approx(40 * 64 / 3.0)


def test_a_failure_and_what_is_done_again_are_told_apart() -> None:
    found = account(Run().steps(10).lose(1).steps(10).in_order())

    assert found.losses[FAILURES] == pytest.approx(0.095, abs=0.002)  # detect, agree, form
    assert found.losses[REDO] == pytest.approx(0.04)
    assert found.num_redone == 2


def test_what_a_slow_rank_costs_is_its_excess_over_the_middle() -> None:
    run = Run(slow={2: 3.0}).steps(10)
    found = account(run.in_order())

    assert found.losses[SLOW] == pytest.approx(10 * 2 * 0.05)


def test_a_pause_between_steps_is_the_programs_own() -> None:
    run = Run().steps(5)
    run.at += 2.0
    found = account(run.steps(5).in_order())

    assert found.losses[OUTSIDE] == pytest.approx(2.0)


def test_saving_that_stalls_a_step_is_counted() -> None:
    run = Run(num_members=1).steps(1)
    run.at += 0.05
    run.say(
        0,
        StepCommitted,
        step=1,
        values={},
        num_samples=64,
        replicas=1,
        took_s=0.05,
        seconds={"forward": 0.01, "checkpoint": 0.02},
    )

    assert account(run.in_order()).losses[CHECKPOINT] == pytest.approx(0.02)


def test_steps_that_are_committed_again_were_lost() -> None:
    run = Run().steps(20)
    run.step = 10
    found = account(run.steps(20).in_order())

    assert found.losses[ROLLBACK] == pytest.approx(10 * 0.045)
    assert found.num_steps == 30
    assert found.num_samples == 30 * 64
    assert [each.is_rollback for each in commits_of(run.in_order())].count(True) == 1


def test_a_total_loss_costs_the_time_until_the_others_run_and_the_steps_after_the_checkpoint() -> None:
    run = Run(num_members=2).steps(20)
    run.members, run.step = {}, 15
    run.at += 4.0
    for rank in (0, 1):
        run._begin(rank)
    run.at += 1.0
    found = account(run.steps(10).in_order())

    assert found.losses[FAILURES] == pytest.approx(5.0)
    assert found.losses[ROLLBACK] == pytest.approx(5 * 0.045)
    assert found.num_steps == 25


def test_clocks_that_differ_by_seconds_make_no_rollback() -> None:
    run = Run(num_members=2).steps(100)
    for member in ("m002",):
        run.events[member] = [type(e)(**{**vars(e), "at": e.at + 2.0}) for e in run.events[member]]
    commits = commits_of(run.in_order())

    assert len(commits) == 100
    assert not any(each.is_rollback for each in commits)
    assert all(len(each.told) == 2 for each in commits)


def test_a_member_whose_lines_are_missing_makes_no_rollback() -> None:
    run = Run(num_members=2).steps(10)
    its = run.events["m001"]
    run.events["m001"] = [each for each in its if not (isinstance(each, StepCommitted) and each.step in (3, 4))]

    assert not any(each.is_rollback for each in commits_of(run.in_order()))


def test_a_stall_that_is_longer_than_the_step_was_in_the_gap_before_it() -> None:
    good_s, losses = shares(1.0, 0.1, stalled_s=0.5)

    assert good_s == pytest.approx(0.0)
    assert losses == {
        OUTSIDE: pytest.approx(0.5),
        FAILURES: pytest.approx(0.5),
        **dict.fromkeys(losses.keys() - {OUTSIDE, FAILURES}, 0.0),
    }


def test_shares_never_exceed_the_interval() -> None:
    good_s, losses = shares(0.1, 5.0, stalled_s=1.0, redo_s=1.0, data_s=1.0)

    assert good_s == 0.0
    assert sum(losses.values()) == pytest.approx(0.1)


def test_one_member_knows_its_own_account_while_it_runs() -> None:
    run = Run().steps(10).lose(1).steps(10)
    live = LiveGoodput()
    for event in run.events["m001"]:
        live.take(event)
    found = live.account()

    assert found.good_s + sum(found.losses.values()) == pytest.approx(found.wall_s)
    assert found.losses[REDO] == pytest.approx(0.04)
    assert found.losses[FAILURES] == pytest.approx(0.095, abs=0.002)
    assert found.goodput == pytest.approx(account(run.in_order()).goodput, abs=0.02)


def test_a_process_that_has_committed_nothing_has_no_goodput() -> None:
    live = LiveGoodput()
    live.take(TrainingStarted(job="gpt", member="m1", rank=0, generation=0, at=3.0, step=0))

    assert live.account() == Account()
