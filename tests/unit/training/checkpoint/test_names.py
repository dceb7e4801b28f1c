"""Names of checkpoints, and which of them stay."""

from __future__ import annotations

from dataclasses import dataclass

from multiworld.training.checkpoint.names import (
    deleted_name,
    is_whole,
    leftovers,
    surplus,
    unfinished_name,
    whole_name,
)


@dataclass(frozen=True)
class Kept:
    name: str
    sequence: int
    job: str = "mine"


def test_a_step_that_was_rolled_back_and_saved_again_gets_a_name_of_its_own() -> None:
    assert whole_name(40, []) == "step-00000040"
    assert whole_name(40, ["step-00000040", "step-00000040-2"]) == "step-00000040-3"


def test_only_names_that_a_finished_checkpoint_gets_are_read() -> None:
    assert is_whole(whole_name(40, []))
    assert is_whole(whole_name(40, ["step-00000040"]))
    assert is_whole("step-1234567890")
    for name in (unfinished_name(40, "a"), deleted_name("step-00000040", "a"), "step-4", "step-00000040.bak", "x"):
        assert not is_whole(name)


def test_leftovers_are_other_attempts_and_what_was_being_deleted() -> None:
    current = unfinished_name(60, "b")
    names = ["step-00000040", current, unfinished_name(60, "a"), deleted_name("step-00000020", "a"), "notes.txt"]
    assert leftovers(names, current) == [deleted_name("step-00000020", "a"), unfinished_name(60, "a")]


def test_what_another_writer_has_begun_of_a_later_step_is_no_leftover() -> None:
    names = [unfinished_name(80, "c"), unfinished_name(40, "a")]
    assert leftovers(names, unfinished_name(60, "b")) == [unfinished_name(40, "a")]


def test_the_newest_stay_by_their_sequence_and_not_by_their_step() -> None:
    saved = [Kept("step-00000080", 1), Kept("step-00000040", 2), Kept("step-00000060", 3)]
    assert surplus(saved, "mine", 2) == ["step-00000080"]
    assert surplus(saved, "mine", 3) == []


def test_checkpoints_of_another_job_stay() -> None:
    saved = [Kept("step-00000020", 1, "theirs"), Kept("step-00000040", 2), Kept("step-00000060", 3)]
    assert surplus(saved, "mine", 1) == ["step-00000040"]
