"""Names of snapshots' files, and which of them nobody needs any more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from multiworld.training.copies.names import FileName, Run, all_but, of_dead_runs, of_job, outdated, parse, readable

RUN = Run(job="job", run="now", pid=10, start_time=99)
BEFORE = replace(RUN, run="before", pid=9)
NAME = FileName(run=RUN, step=40, shard=1, num_shards=2, label="x", member="m")


@pytest.mark.parametrize("name", [NAME, replace(NAME, is_copy=True), replace(NAME, is_copy=True, is_part=True)])
def test_a_name_is_read_as_it_was_written(name: FileName) -> None:
    assert parse(str(name)) == name


@pytest.mark.parametrize("name", ["", "multiworld-copy", f"{NAME}.more", f"x{NAME}", str(NAME).replace("40", "4x")])
def test_other_files_are_none_of_ours(name: str) -> None:
    assert parse(name) is None
    assert not of_job([name], "job")


def test_only_whole_files_of_this_run_are_read_and_the_newest_first() -> None:
    older, copy = replace(NAME, step=30), replace(NAME, is_copy=True)
    others = [replace(NAME, is_part=True), replace(NAME, run=BEFORE), replace(NAME, num_shards=4)]
    assert readable([older, *others, copy, NAME], RUN, 2) == [NAME, copy, older]


def test_what_another_run_left_goes_once_the_process_that_started_it_is_gone() -> None:
    left = replace(NAME, run=BEFORE)
    assert of_dead_runs([NAME, left], RUN, lambda pid, start: False) == [left]
    assert of_dead_runs([NAME, left], RUN, lambda pid, start: (pid, start) == (9, 99)) == []


def test_what_lost_members_left_goes_when_all_have_something_newer() -> None:
    lost, part = replace(NAME, member="lost"), replace(NAME, member="lost", step=60, is_part=True)
    assert outdated([NAME, lost, part], RUN, 40, {"m"}) == [part]
    assert outdated([NAME, lost, part], RUN, 41, {"m"}) == [lost, part]


def test_all_but_what_the_training_begins_with_goes() -> None:
    other, part = replace(NAME, label="y", step=50), replace(NAME, is_part=True)
    assert all_but([NAME, other, part, replace(other, run=BEFORE)], RUN, "x") == [other, part]
    assert all_but([NAME], RUN, "") == [NAME]
