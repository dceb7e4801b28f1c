"""What is seen of real child processes: running, stopped, busy, frozen, dead, replaced."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from multiworld.world.liveness import Vital
from multiworld.world.processes import vitals
from multiworld.world.processes.procfs import process_session, process_start_time

pytestmark = [pytest.mark.process, pytest.mark.alone]

HOLD_GIL = "import ctypes; print('holding', flush=True); ctypes.PyDLL(None).usleep(20_000_000)"


@contextmanager
def child(code: str = "import sys; sys.stdin.read()") -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def start_time(process: subprocess.Popen[bytes]) -> int:
    started = process_start_time(process.pid)
    assert started is not None
    return started


def wait_for_stop(process: subprocess.Popen[bytes]) -> None:
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


def test_a_child_is_seen_running_stopped_continued_and_dead() -> None:
    with child() as process:
        started = start_time(process)
        assert vitals.observe_process(process.pid, started) is Vital.RUNNING
        process.send_signal(signal.SIGSTOP)
        wait_for_stop(process)
        assert vitals.observe_process(process.pid, started) is Vital.STOPPED
        process.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, process.pid, os.WCONTINUED | os.WNOWAIT)
        assert vitals.observe_process(process.pid, started) is Vital.RUNNING
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, not reaped: a zombie
        assert vitals.observe_process(process.pid, started) is Vital.EXITED
        process.wait()
        assert vitals.observe_process(process.pid, started) is Vital.EXITED


def test_a_process_that_holds_its_interpreter_lock_is_running() -> None:
    with child(HOLD_GIL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"holding\n"
        assert vitals.observe_process(process.pid, start_time(process)) is Vital.RUNNING


def test_another_process_with_the_same_pid_does_not_count() -> None:
    with child() as process:
        assert vitals.observe_process(process.pid, start_time(process) + 1) is Vital.EXITED


def test_a_name_with_blanks_and_parentheses_does_not_confuse_the_fields() -> None:
    naming = "open('/proc/self/comm', 'w').write('a) T 1 (b'); print('named', flush=True); import sys; sys.stdin.read()"
    with child(naming) as process:
        before = start_time(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"named\n"
        assert Path(f"/proc/{process.pid}/comm").read_text() == "a) T 1 (b\n"
        assert start_time(process) == before
        assert vitals.observe_process(process.pid, before) is Vital.RUNNING
        assert process_session(process.pid) == os.getsid(process.pid)


def test_a_process_whose_main_thread_ended_first_is_running() -> None:
    code = (
        "import ctypes, threading, sys, os\n"
        "def go_on():\n"
        "    while open('/proc/self/stat').read().rpartition(')')[2].split()[0] != 'Z':\n"
        "        os.sched_yield()\n"
        "    print('alone', flush=True)\n"
        "    sys.stdin.read()\n"
        "threading.Thread(target=go_on).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    with child(code) as process:
        started = start_time(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"alone\n"
        assert vitals.observe_process(process.pid, started) is Vital.RUNNING


def test_a_frozen_process_counts_as_stopped() -> None:
    mounts = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
    root = next((mount for mount in mounts if (mount / "cgroup.controllers").exists()), None)
    if root is None or not os.access(root, os.W_OK):
        pytest.skip("needs a writable control group hierarchy of version 2")
    group = root / f"multiworld-test-{os.getpid()}"
    group.mkdir()
    try:
        with child() as process, open(group / "cgroup.events") as events:
            started = start_time(process)
            (group / "cgroup.procs").write_text(str(process.pid))
            poller = select.poll()
            poller.register(events, select.POLLPRI)
            assert "frozen 0" in events.read()
            (group / "cgroup.freeze").write_text("1")
            assert poller.poll(10_000)
            assert vitals.observe_process(process.pid, started) is Vital.STOPPED
            (group / "cgroup.freeze").write_text("0")
            process.kill()
            process.wait()
    finally:
        group.rmdir()


def test_an_unknown_pid_has_no_start_time_and_no_descriptor() -> None:
    with child() as process:
        started = start_time(process)
    assert process_start_time(process.pid) is None
    assert vitals.open_pidfd(process.pid) is None
    assert vitals.observe_process(process.pid, started) is Vital.EXITED


def test_a_pidfd_fires_when_the_process_is_killed() -> None:
    with child() as process:
        descriptor = vitals.open_pidfd(process.pid, start_time(process))
        if descriptor is None:
            pytest.skip("no pidfd on this kernel")
        try:
            assert select.select([descriptor], [], [], 0)[0] == []
            process.kill()
            assert select.select([descriptor], [], [], 10)[0] == [descriptor]
        finally:
            os.close(descriptor)


def test_no_pidfd_for_another_process_with_the_same_pid() -> None:
    with child() as process:
        descriptors = os.listdir("/proc/self/fd")
        assert vitals.open_pidfd(process.pid, start_time(process) + 1) is None
        assert os.listdir("/proc/self/fd") == descriptors


def test_processes_of_one_host_have_one_identity_and_share_it() -> None:
    code = "from multiworld.world.processes.vitals import host_identity; print(host_identity().hex())"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    assert bytes.fromhex(printed) == vitals.host_identity()
    assert len(vitals.host_identity()) == 16
    with child() as process:
        assert vitals.shares_host(vitals.host_identity(), process.pid, start_time(process))
        assert not vitals.shares_host(bytes(16), process.pid, start_time(process))
        assert not vitals.shares_host(vitals.host_identity(), process.pid, start_time(process) + 1)


@pytest.mark.parametrize("namespace", ["--net", "--pid"])
def test_another_namespace_is_another_host(namespace: str) -> None:
    code = "from multiworld.world.processes.vitals import host_identity; print(host_identity().hex())"
    command = ["unshare", namespace, "--fork", sys.executable, "-c", code]
    if namespace == "--pid":
        command.insert(2, "--mount-proc")
    try:
        printed = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("needs unshare of util-linux")
    if printed.returncode != 0 and "Operation not permitted" in printed.stderr:
        pytest.skip("needs the right to make namespaces")
    assert printed.returncode == 0, printed.stderr
    assert bytes.fromhex(printed.stdout) != vitals.host_identity()
