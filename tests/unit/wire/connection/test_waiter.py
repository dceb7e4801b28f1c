"""What wakes a waiting thread is its own, also in a forked child."""

from __future__ import annotations

import os

import pytest

from multiworld.process.spawn.forking import fork
from multiworld.wire.connection.waiter import waiter


def test_what_wakes_a_forked_child_does_not_wake_its_parent() -> None:
    ours = waiter.waker
    assert ours is not None
    pid = fork()
    if pid == 0:
        status = 1
        try:
            waiter.forget()
            theirs = waiter.waker
            if theirs is not None and theirs is not ours:
                os.eventfd_write(theirs.fd, 1)
                status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with pytest.raises(BlockingIOError):
        os.eventfd_read(ours.fd)
