"""How a program with nodes ends: without waiting, by Ctrl-C, and in a forked child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from multiworld import remote
from multiworld.errors import PeerLeftError, WorldBrokenError
from multiworld.remote.session.session import Session
from multiworld.testing import scaled
from tests import warm_programs

PROMPT_S = 1.0

pytestmark = pytest.mark.process

UNSEEN = """
import atexit, os, sys
atexit.register(lambda: print("a handler from before ran"))

import torch
from multiworld import remote

nodes = remote.local(1)
x = nodes[1].ones(3)
child = os.fork()
if child == 0:
    try:
        (x + 1).fetch()
    except remote.ConnectionEndedError as error:
        os.write(1, f"child: {error}\\n".encode())
    try:
        nodes[1].ones(3)
    except remote.ConnectionEndedError as error:
        os._exit(0)
    os._exit(7)
assert os.waitpid(child, 0)[1] == 0
file = open(sys.argv[1], "w")
file.write("kept")  # and not closed
torch.linalg.cholesky(nodes[1].zeros(2, 2) - 1)  # fails, and nobody looks
"""


def test_a_program_that_ends_without_waiting_flushes_all_and_says_what_nobody_saw(tmp_path: Path) -> None:
    program, kept = tmp_path / "program.py", tmp_path / "kept"
    program.write_text(UNSEEN)
    done = warm_programs.run(
        [sys.executable, str(program), str(kept)], capture_output=True, text=True, timeout=scaled(40), check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "nobody saw this error: aten._linalg_check_errors" in done.stderr
    line = 1 + UNSEEN[: UNSEEN.index("torch.linalg")].count("\n")
    assert f"program.py:{line} in <module>" in done.stderr
    assert "child: the connection of this remote tensor has ended (this process was forked" in done.stdout
    assert "a handler from before ran" in done.stdout
    assert kept.read_text() == "kept"


FAILING = """
from multiworld import remote

with remote.local(2) as nodes:
    x = nodes[1].ones(3) + nodes[2].ones(3).to_node(1)
    raise ValueError("of the program")
"""


def test_an_error_of_the_program_is_all_that_it_shows(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(FAILING)
    done = warm_programs.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=scaled(40), check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.startswith("Traceback (most recent call last):\n"), done.stderr
    assert done.stderr.endswith("ValueError: of the program\n"), done.stderr


SENDING = """
import torch
from multiworld import remote

with remote.local(1) as nodes:
    nodes[1].ones(3)
    kept = nodes[1].send(torch.ones(1 << 28, dtype=torch.uint8), non_blocking=True)
"""


def test_a_program_may_end_while_a_tensor_is_sent(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SENDING)
    for _ in range(2):
        done = warm_programs.run(
            [sys.executable, str(program)], capture_output=True, text=True, timeout=scaled(40), check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_node_that_leaves_when_all_is_done_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    say_end = Session.say_end

    def say_slowly(session: Session) -> None:
        say_end(session)
        left.append(session.world.wait_broken_blocking())

    left: list[WorldBrokenError] = []
    monkeypatch.setattr(Session, "say_end", say_slowly)
    with remote.local(1) as nodes:
        nodes[1].ones(3)
    assert [type(each) for each in left] == [PeerLeftError]
    assert "lost" not in caplog.text


INTERRUPTED = """
from multiworld import remote

nodes = remote.local(1)
x = nodes[1].randn(1500, 1500)
for _ in range(400):
    x = x @ x
print("issued", flush=True)
x.fetch()
"""


def test_ctrl_c_drops_what_waits_and_the_prompt_is_back(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(INTERRUPTED)
    running = warm_programs.Popen(
        [sys.executable, str(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == "issued\n"
        interrupted_at = time.monotonic()
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does
        _, errors = running.communicate(timeout=scaled(30))
        took_s = time.monotonic() - interrupted_at
    finally:
        running.kill()
        running.wait()
    assert running.returncode in (-signal.SIGINT, 128 + signal.SIGINT), errors
    assert "KeyboardInterrupt" in errors
    assert took_s < scaled(PROMPT_S), errors
