"""Without the native core a channel through shared memory keeps the promises in which the core has a part."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from multiworld import native
from multiworld.testing import scaled

PROGRAM = ("tests.process.warm_command", "multiworld.testing.channel_conformance")
CHECKS = (
    "every_size_arrives",
    "messages_of_a_tag_keep_their_order",
    "a_receive_is_never_written_late",
    "a_send_that_is_given_up_is_whole_or_not_at_all",
    "nothing_is_written_after_abort",
    "a_leave_delivers_what_was_sent",
)


@pytest.mark.skipif(native.core is None, reason="all other tests run without it")
def test_shared_memory_keeps_its_promises_without_the_native_core() -> None:
    only = [argument for check in CHECKS for argument in ("--only", check)]
    process = subprocess.run(
        [sys.executable, "-m", *PROGRAM, "shm", "--world-sizes", "2", *only],
        env={**os.environ, native.VARIABLE: "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=scaled(55),
    )
    assert process.returncode == 0, process.stdout
    assert f"{len(CHECKS)} hold" in process.stdout
