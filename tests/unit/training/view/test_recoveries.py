"""The timeline of recoveries, merged over members."""

from __future__ import annotations

import pytest

from multiworld.training.events import (
    MemberLost,
    MembershipChanged,
    RecoveryPhase,
    StepCommitted,
    TrainingEnded,
    TrainingStarted,
)
from multiworld.training.view.recoveries import recoveries_of

from .runs import Run


def test_a_run_without_a_fault_has_only_its_start() -> None:
    (start,) = recoveries_of(Run().steps(5).end().in_order())

    assert start.kind == "start"
    assert start.came == (0, 1, 2)


def test_one_lost_member_is_one_recovery_of_all_survivors() -> None:
    run = Run().steps(5).lose(2).steps(5)
    _, recovery = recoveries_of(run.in_order())

    assert recovery.kind == "failure"
    assert (recovery.step, recovery.generation, recovery.ranks, recovery.gone) == (5, 2, (0, 1), (2,))
    assert [(lost.rank, lost.cause, lost.seen_by) for lost in recovery.lost] == [(2, "PeerDiedError", (0, 1))]
    assert [phase.name for phase in recovery.phases] == ["detect", "agree", "form", "redo"]
    assert [round(phase.took_s, 6) for phase in recovery.phases] == [0.005, 0.03, 0.06, 0.04]
    assert [track.rank for track in recovery.tracks] == [0, 1]
    assert recovery.redone == 2
    assert recovery.took_s == pytest.approx(0.185, abs=1e-3)


def test_the_slowest_member_of_a_phase_is_named() -> None:
    run = Run(num_members=2).steps(1)
    for rank, took_s in ((0, 0.01), (1, 0.5)):
        run.say(rank, MemberLost, lost_rank=7, step=1, cause="PeerSilentError", detail="3 s")
        run.say(rank, RecoveryPhase, run.at + 1, name="form", step=1, took_s=took_s)
    form = recoveries_of(run.in_order())[-1].phases[0]

    assert (form.slowest_rank, form.took_s, form.num_members) == (1, 0.5, 2)
    assert form.began_at == pytest.approx(run.at + 0.5)


def test_a_second_failure_before_the_next_commit_is_of_the_same_recovery() -> None:
    run = Run(num_members=4).steps(3)
    del run.members[3]
    for rank in (0, 1, 2):
        run.say(rank, MemberLost, lost_rank=3, step=3, cause="PeerDiedError", detail="")
    run.at += 0.1
    run.generation = 2
    for rank in (0, 1, 2):
        run.say(rank, MembershipChanged, step=3, ranks=(0, 1, 2), gone=(3,))
    run.lose(2)
    recoveries = recoveries_of(run.in_order())

    assert [each.kind for each in recoveries] == ["start", "failure"]
    assert [lost.rank for lost in recoveries[1].lost] == [3, 2]
    assert recoveries[1].generation == 3
    assert recoveries[1].gone == (2, 3)


def test_a_step_that_counts_before_the_membership_changes_does_not_cut_the_recovery() -> None:
    run = Run().steps(3)
    del run.members[2]
    for rank in (0, 1):
        run.say(rank, MemberLost, lost_rank=2, step=3, cause="PeerDiedError", detail="")
    run.steps(1)
    run.generation = 2
    for rank in (0, 1):
        run.say(rank, MembershipChanged, step=4, ranks=(0, 1), gone=(2,))
    run.steps(2)
    _, recovery = recoveries_of(run.in_order())

    assert recovery.gone == (2,)
    assert recovery.committed_at == pytest.approx(run.at - 0.05)


def test_a_member_that_dies_in_a_recovery_is_part_of_it() -> None:
    run = Run(num_members=4).steps(3)
    run.say(3, MemberLost, run.at + 0.01, lost_rank=2, step=3, cause="PeerDiedError", detail="seen first")
    del run.members[3]
    run.lose(2)
    _, recovery = recoveries_of(run.in_order())

    assert recovery.lost[0].seen_by == (0, 1, 3)
    assert recovery.lost[0].detail == "seen first"


def test_a_newcomer_is_a_join_with_its_transfer() -> None:
    run = Run().steps(3).lose(1).steps(4).join(1).steps(3)
    recovery = recoveries_of(run.in_order())[-1]

    assert (recovery.kind, recovery.came, recovery.ranks) == ("join", (1,), (0, 1, 2))
    assert [(each.rank, each.size_bytes, each.sources) for each in recovery.transfers] == [(1, 8_000_000, 2)]
    assert len(recovery.tracks) == 3


def test_a_transfer_that_ends_after_the_next_commit_belongs_to_the_join() -> None:
    run = Run().steps(3).lose(1).join(1)
    run.say(1, RecoveryPhase, run.at + 0.5, name="transfer", step=run.step, took_s=0.5)
    recoveries = recoveries_of(run.in_order())

    assert [each.kind for each in recoveries] == ["start", "failure", "join"]
    assert [phase.name for phase in recoveries[-1].phases] == ["form", "transfer"]
    assert recoveries[-1].took_s == pytest.approx(0.08)


def test_a_leave_is_no_failure() -> None:
    run = Run().steps(3)
    del run.members[0]
    run.generation = 2
    for rank in (1, 2):
        run.say(rank, MembershipChanged, step=3, ranks=(1, 2), gone=(0,))
    run.steps(2)

    assert [each.kind for each in recoveries_of(run.in_order())] == ["start", "leave"]


def test_a_recovery_that_nobody_survived_has_no_commit() -> None:
    run = Run().steps(3)
    for rank in (0, 1):
        run.say(rank, MemberLost, lost_rank=2, step=3, cause="PeerDiedError", detail="")
    recovery = recoveries_of(run.in_order())[-1]

    assert recovery.committed_at is None
    assert recovery.lost[0].seen_by == (0, 1)


def test_generations_that_count_from_one_again_are_not_mixed_up() -> None:
    first, second = Run().steps(3).lose(2).steps(3), Run(at=1_000_900.0).steps(3).lose(1).steps(3)
    for member, its in list(second.events.items()):
        first.events[f"again {member}"] = [type(e)(**{**vars(e), "member": f"again {member}"}) for e in its]
    recoveries = recoveries_of(first.in_order())

    assert [each.kind for each in recoveries] == ["start", "failure", "start", "failure"]
    assert [each.gone for each in recoveries if each.kind == "failure"] == [(2,), (1,)]


def test_two_trainings_in_one_record_are_kept_apart() -> None:
    first, second = Run(job="a").steps(2).lose(1), Run(job="b").steps(2).lose(2)
    events = first.in_order() + second.in_order()

    assert [(each.job, each.gone) for each in recoveries_of(events) if each.kind == "failure"] == [
        ("a", (1,)),
        ("b", (2,)),
    ]


def test_a_process_that_starts_anew_opens_no_recovery() -> None:
    run = Run().steps(2)
    run.say(0, TrainingStarted, step=2)

    assert [each.kind for each in recoveries_of(run.in_order())] == ["start"]
    assert isinstance(run.in_order()[-2], StepCommitted | TrainingStarted)


def test_a_world_that_ended_with_the_error_of_a_program_is_no_recovery() -> None:
    run = Run(num_members=2).steps(3)
    run.say(0, RecoveryPhase, name="detect", step=3, took_s=0.01)
    run.say(0, TrainingEnded, step=2, error="PeerRaisedError: the program raised on rank 1 in step 3: KeyError: 1")

    assert [each.kind for each in recoveries_of(run.in_order())] == ["start"]
