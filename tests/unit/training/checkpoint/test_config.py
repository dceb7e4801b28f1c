"""What a user sets for checkpoints."""

from __future__ import annotations

from typing import Any

import pytest

from multiworld.training.checkpoint.config import Checkpoint


def test_a_checkpoint_is_due_after_every_so_many_committed_steps_and_when_asked_for() -> None:
    config = Checkpoint("somewhere", every_steps=20)
    assert [step for step in range(1, 61) if config.is_due(step - 1, step)] == [20, 40, 60]
    assert config.is_due(6, 7, asked=True)


def test_where_only_some_steps_can_be_saved_the_first_one_after_is() -> None:
    config = Checkpoint("somewhere", every_steps=20)
    assert [step for step in range(8, 65, 8) if config.is_due(step - 8, step)] == [24, 40, 64]


def test_the_directory_stays_where_it_was_when_the_program_changes_its_own(monkeypatch: Any, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    config = Checkpoint("here")
    monkeypatch.chdir("/")
    assert config.directory == str(tmp_path / "here")


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"dir": ""}, TypeError, "a directory that all hosts share"),
        ({"dir": 3}, TypeError, "dir=3"),
        ({"every_steps": 0}, ValueError, "every_steps=0: give 1 or more"),
        ({"every_steps": 2.5}, TypeError, "every_steps=2.5: give a whole number"),
        ({"keep": 0}, ValueError, "keep=0: give 1 or more"),
        ({"keep": True}, TypeError, "keep=True"),
        ({"writers": 0}, ValueError, "writers=0"),
        ({"timeout_s": 0}, ValueError, "timeout_s=0"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_name(settings: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        Checkpoint(**{"dir": "d", **settings})


def test_copies_are_ten_times_as_frequent_as_checkpoints_unless_said() -> None:
    assert Checkpoint("x", every_steps=500, copies=1).copy_interval == 50
    assert Checkpoint("x", every_steps=3, copies=1).copy_interval == 1
    assert Checkpoint("x", every_steps=500, copies=1, copy_every_steps=20).copy_interval == 20
    assert Checkpoint("x", copies=1).agreed != Checkpoint("x").agreed


@pytest.mark.parametrize(
    ("options", "error", "problem"),
    [
        ({"copies": -1}, ValueError, "copies=-1: give 0 or more"),
        ({"copies": True}, TypeError, "copies=True"),
        ({"copy_every_steps": 5}, ValueError, "needs copies=1"),
        ({"copies": 1, "copy_every_steps": 0}, ValueError, "give 1 to every_steps=1000"),
        ({"copies": 1, "copy_every_steps": 2000}, ValueError, "give 1 to every_steps=1000"),
        ({"copies": 1, "copy_every_steps": 2.5}, TypeError, "give a whole number"),
    ],
)
def test_copies_that_make_no_sense_are_refused(options: dict[str, float], error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        Checkpoint("x", **options)  # type: ignore[arg-type]
