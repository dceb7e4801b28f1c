"""The far end of a command on several hosts: what it does when the near end speaks, is silent, or is gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from multiworld.elastic.hosts.far_order import FarOrder
from multiworld.testing import wait_until
from multiworld.wire.messages import to_json
from tests import warm_programs

from .running import runs_in

LAUNCHER = """\
import signal, sys
told = []

def end(signum, frame):
    told.append(signum)
    open(f"told{len(told)}", "w").close()
    if len(told) == int(sys.argv[1]):
        sys.exit(7)

signal.signal(signal.SIGTERM, end)
open("runs", "w").close()
while True:
    signal.pause()
"""
TIMEOUT_S = 30


class Far:
    """A far end, and the near end's pipe to it."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        self.process, self.input, self._folder = process, process.stdin, folder
        assert wait_until((folder / "runs").exists, TIMEOUT_S)

    def was_told(self, times: int) -> bool:
        return (self._folder / f"told{times}").exists()

    def say(self, *lines: bytes) -> None:
        self.input.write(b"".join(line + b"\n" for line in lines))
        self.input.flush()


@contextmanager
def far_end(
    tmp_path: Path, *, num_signals: int = 1, silent_s: float | None = None, end_s: float = 45.0
) -> Iterator[Far]:
    (tmp_path / "stands_for_launcher.py").write_text(LAUNCHER)
    order = FarOrder(
        host="here",
        directory=str(tmp_path),
        variables={},
        arguments=(str(num_signals),),
        module="stands_for_launcher",
        ready="it was started",
        silent_s=silent_s,
        leaves=f"no such job {os.getpid()}",
        end_s=end_s,
    )
    process = warm_programs.Popen(
        [sys.executable, "-m", "multiworld.elastic.remote_agent"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        _pipe(process.stdin).write(json.dumps(to_json(order)).encode() + b"\n")
        _pipe(process.stdin).flush()
        assert _pipe(process.stdout).readline() == b"it was started\n"
        yield Far(tmp_path, process)
    finally:
        process.kill()
        process.wait()
        _pipe(process.stdout).close()
        _pipe(process.stdin).close()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def test_the_end_of_its_input_ends_a_launcher_whose_job_does_not_let_it_go(tmp_path: Path) -> None:
    with far_end(tmp_path) as far:
        far.input.close()
        assert far.process.wait(TIMEOUT_S) == 7


def test_a_launcher_that_does_not_end_is_asked_again(tmp_path: Path) -> None:
    with far_end(tmp_path, num_signals=2, end_s=0.2) as far:
        far.input.close()
        assert far.process.wait(TIMEOUT_S) == 7


def test_a_near_end_that_is_silent_is_lost_and_one_that_is_heard_is_not(tmp_path: Path) -> None:
    with far_end(tmp_path, silent_s=1.5) as far:
        for _ in range(20):
            with pytest.raises(subprocess.TimeoutExpired):
                far.process.wait(0.15)
            far.say(b"")
        assert not far.was_told(1)
        assert far.process.wait(TIMEOUT_S) == 7


def test_each_wish_to_end_is_passed_on(tmp_path: Path) -> None:
    with far_end(tmp_path, num_signals=2) as far:
        far.say(b"", b"end")
        assert wait_until(lambda: far.was_told(1), TIMEOUT_S)
        far.say(b"end")
        assert far.process.wait(TIMEOUT_S) == 7


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_it_is_one_to_the_launcher(signum: int, tmp_path: Path) -> None:
    with far_end(tmp_path) as far:
        far.process.send_signal(signum)
        assert far.process.wait(TIMEOUT_S) == 7


def test_nothing_is_left_of_a_far_end_that_is_killed(tmp_path: Path) -> None:
    with far_end(tmp_path) as far:
        far.process.kill()
        assert wait_until(lambda: not runs_in(tmp_path), TIMEOUT_S)
        assert not far.was_told(1)
