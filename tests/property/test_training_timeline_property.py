"""The merge of the members' records: whatever fails, each loss is in one recovery and each second has one cause."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiworld.training.events import MemberLost, TrainingEvent
from multiworld.training.view.goodput import account_of, commits_of
from multiworld.training.view.lines import line_of, merged, read_lines
from multiworld.training.view.recoveries import recoveries_of
from tests.unit.training.view.runs import Run

actions = st.lists(
    st.one_of(
        st.tuples(st.just("steps"), st.integers(0, 12)),
        st.tuples(st.just("lose"), st.integers(0, 6)),
        st.tuples(st.just("join"), st.integers(0, 6)),
        st.tuples(st.just("pause"), st.integers(1, 3)),
        st.tuples(st.just("back"), st.integers(1, 5)),
    ),
    max_size=12,
)


def run_of(num_members: int, planned: list[tuple[str, int]]) -> tuple[Run, list[int]]:
    """Return a run in which that happened, and who was lost."""
    run, lost = Run(num_members=num_members).steps(2), []
    for action, number in planned:
        if action == "steps":
            run.steps(number)
        elif action == "lose" and number in run.members and len(run.members) > 1:
            run.lose(number)
            lost.append(number)
        elif action == "join" and number not in run.members:
            run.join(number)
        elif action == "pause":
            run.at += number
        elif action == "back":
            run.step = max(0, run.step - number)
            run.steps(1)
    return run.steps(1), lost


@given(st.integers(1, 5), actions)
def test_each_loss_is_in_one_recovery_and_the_last_commit_ends_it(
    num_members: int, planned: list[tuple[str, int]]
) -> None:
    run, lost = run_of(num_members, planned)
    recoveries = recoveries_of(run.in_order())

    assert [each.rank for recovery in recoveries for each in recovery.lost] == lost
    for recovery in recoveries:
        assert recovery.committed_at is not None
        assert recovery.began_at <= recovery.committed_at <= recovery.ended_at
        for phase in recovery.phases:
            assert recovery.began_at <= phase.began_at <= phase.ended_at <= recovery.ended_at + 1e-6
            assert phase.took_s <= phase.ended_at - phase.began_at + 1e-6


@given(st.integers(1, 5), actions, st.randoms(use_true_random=False))
def test_the_order_in_which_the_files_are_read_does_not_matter(
    num_members: int, planned: list[tuple[str, int]], shuffle: random.Random
) -> None:
    run, _ = run_of(num_members, planned)
    files = [list(its) for its in run.events.values()]
    shuffle.shuffle(files)

    assert recoveries_of(merged(files)) == recoveries_of(merged(run.events.values()))


@given(st.integers(1, 5), actions)
def test_good_time_and_losses_add_up_to_the_wall_time(num_members: int, planned: list[tuple[str, int]]) -> None:
    run, _ = run_of(num_members, planned)
    events = run.in_order()
    account = account_of(events, recoveries_of(events))

    assert account.good_s >= 0
    assert all(lost_s >= -1e-9 for lost_s in account.losses.values())
    assert account.good_s + sum(account.losses.values()) == pytest.approx(account.wall_s)
    assert account.num_steps == len({each.step for each in commits_of(events)})


@given(st.integers(2, 5), actions, st.data())
def test_a_record_that_kills_have_cut_anywhere_can_be_read(
    num_members: int, planned: list[tuple[str, int]], data: st.DataObject
) -> None:
    run, _ = run_of(num_members, planned)
    files: list[tuple[TrainingEvent, ...]] = []
    for its in run.events.values():
        written = b"".join(map(line_of, its))
        read = read_lines(written[: data.draw(st.integers(0, len(written)))])
        assert list(read.events) == its[: len(read.events)]
        assert read.num_damaged == 0
        files.append(read.events)
    events = merged(files)
    recoveries = recoveries_of(events)
    account = account_of(events, recoveries)

    seen = {(each.lost_rank, each.step) for each in events if isinstance(each, MemberLost)}
    assert {each.rank for recovery in recoveries for each in recovery.lost} == {rank for rank, _ in seen}
    assert account.good_s + sum(account.losses.values()) == pytest.approx(account.wall_s)
