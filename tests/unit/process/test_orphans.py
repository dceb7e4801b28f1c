"""What workers leave behind is reaped, and what strangers do, and nothing that somebody waits for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from multiworld.process.orphans import OrphanReaper, Reaping
from multiworld.process.spawn.forking import WAITED_FOR, adopt_orphans
from multiworld.testing import wait_until
from multiworld.wire.progress.thread import ProgressThread

EVERY_S, WAIT_S = 0.05, 10.0
LEAVES_ONE = "import subprocess as s; print(s.Popen(['sleep', '0.1'], start_new_session=True, stdout=2).pid)"


@pytest.fixture
def left() -> Iterator[int]:
    """The pid of a process whose parent has ended, of a session of its own; this process is its parent now."""
    adopt_orphans(True)
    try:
        told = subprocess.run([sys.executable, "-c", LEAVES_ONE], capture_output=True, text=True, check=True)
        yield int(told.stdout)
    finally:
        adopt_orphans(False)


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def test_a_process_that_a_worker_left_behind_is_reaped_when_it_has_ended(left: int) -> None:
    loop = ProgressThread("test-orphans")
    try:
        OrphanReaper(loop, Reaping(every_s=EVERY_S, late_s=EVERY_S))
        assert wait_until(lambda: not state_of(left), WAIT_S)
    finally:
        loop.stop()


def test_what_somebody_waits_for_is_left_to_them(left: int) -> None:
    loop = ProgressThread("test-orphans")
    WAITED_FOR.add(left)
    try:
        reaper = OrphanReaper(loop, Reaping(every_s=EVERY_S, late_s=EVERY_S))
        assert wait_until(lambda: state_of(left) == "Z", WAIT_S)
        assert not wait_until(lambda: not state_of(left), 6 * EVERY_S)
        assert reaper is not None
    finally:
        WAITED_FOR.discard(left)
        loop.stop()
    assert os.waitpid(left, 0)[0] == left


@pytest.fixture
def own() -> Iterator[subprocess.Popen[bytes]]:
    """A child of this process that has ended, and for which nobody waits yet."""
    if os.getsid(0) == 0:
        pytest.skip("this session began in another pid namespace")
    process = subprocess.Popen(["sh", "-c", "exit 7"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    yield process
    process.wait()


def test_an_exit_status_is_left_to_who_has_started_the_process_however_late_they_ask(
    own: subprocess.Popen[bytes],
) -> None:
    reaping = Reaping(every_s=0.0, late_s=0.0)
    for _ in range(3):
        reaping.look()
    assert own.wait() == 7


def test_a_child_that_has_the_number_of_one_from_before_is_left_to_who_has_started_it(
    own: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr("multiworld.process.orphans.process_start_time", lambda pid: 1)
        reaping = Reaping([own.pid], every_s=0.0)
    for _ in range(3):
        reaping.look()
    assert own.wait() == 7


def test_a_child_from_before_the_program_began_is_reaped(own: subprocess.Popen[bytes]) -> None:
    reaping = Reaping([own.pid], every_s=0.0)
    for _ in range(3):
        reaping.look()
    with pytest.raises(ChildProcessError):
        os.waitpid(own.pid, 0)
