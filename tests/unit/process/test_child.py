"""A worker process seen by its agent."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

from multiworld.process.child import WorkerProcess
from multiworld.process.spawn.fresh import DUMP_SIGNAL
from multiworld.testing.deadlines import wait_until
from multiworld.wire.progress.thread import ProgressThread

PROGRAM = f"""
    import faulthandler, os, threading

    def hang_for_ever():
        print("full", flush=True)
        threading.Event().wait()

    faulthandler.register({int(DUMP_SIGNAL)}, file=2, all_threads=True, chain=False)
    os.set_blocking(2, False)
    try:
        while os.write(2, b" " * 4096):
            pass
    except BlockingIOError:
        os.set_blocking(2, True)
    hang_for_ever()
"""


def test_a_worker_writes_its_stacks_until_all_of_them_are_in_the_pipe() -> None:
    loop = ProgressThread("test-child")
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    try:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == b"full\n"
        process = WorkerProcess(loop, child.pid, lambda returncode: None)
        assert not process.is_dumping
        assert process.dump_stacks()
        assert process.is_dumping  # nobody reads: whatever the moment, it cannot be through
        written = b""
        while b"in <module>" not in written:
            written += os.read(child.stderr.fileno(), 65536)
        assert b"in hang_for_ever" in written
        assert wait_until(lambda: not process.is_dumping, 5.0)
        process.close_descriptor()
    finally:
        child.kill()
        child.communicate()
        loop.stop()
