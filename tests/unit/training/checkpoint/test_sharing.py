"""Who writes what."""

from __future__ import annotations

from multiworld.training.checkpoint.sharing import attempt_of, deal, writers_of


def test_the_first_members_write() -> None:
    assert writers_of(["a", "b", "c"], 2) == ("a", "b")
    assert writers_of(["a"], 2) == ("a",)


def test_tensors_are_dealt_out_by_size_largest_first() -> None:
    assert deal([10, 70, 20, 40, 0], 2) == [1, 0, 1, 1, 0]
    assert deal([5, 5], 1) == [0, 0]
    assert deal([], 3) == []


def test_another_try_at_the_same_step_is_another_attempt() -> None:
    attempts = {
        attempt_of(40, 1, ["a", "b"]),
        attempt_of(40, 2, ["a", "b"]),
        attempt_of(60, 1, ["a", "b"]),
        attempt_of(40, 1, ["a", "c"]),
        attempt_of(40, 1, ["a", "b"]),
    }
    assert len(attempts) == 4
