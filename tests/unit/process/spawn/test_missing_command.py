"""A command that is not there is missing, also where a folder of PATH may not be entered; one that is there is not."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from multiworld.process.spawn.missing_command import start_error

DENIED = PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/root/bin/train")


def error_of(command: str, *folders: Path) -> OSError:
    return start_error(DENIED, command, {"PATH": os.pathsep.join(map(str, folders))})


def test_a_command_that_no_folder_shows_is_missing(tmp_path: Path) -> None:
    error = error_of("train", tmp_path)
    assert (type(error), error.filename) == (FileNotFoundError, "train")


def test_a_command_that_is_there_and_may_not_be_run_is_forbidden(tmp_path: Path) -> None:
    (tmp_path / "train").touch(0o600)
    error = error_of("train", Path("/nowhere"), tmp_path)
    assert (type(error), error.filename) == (PermissionError, "train")


@pytest.mark.parametrize("number", [errno.ENOEXEC, errno.ENOENT, errno.E2BIG])
def test_other_errors_stay_what_they_are(number: int) -> None:
    error = start_error(OSError(number, "as the kernel says", "/bin/train"), "train", {})
    assert (error.errno, error.filename) == (number, "train")


def test_a_path_that_may_not_be_entered_is_forbidden() -> None:
    assert type(error_of("/root/train")) is PermissionError
