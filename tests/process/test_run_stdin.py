"""Workers read the standard input of their launcher: a program stops in the debugger, at a terminal or elsewhere."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from multiworld.testing import scaled

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("no_leaks")]

RUN = [sys.executable, "-c", "import sys; from multiworld.cli.main import main; sys.exit(main())", "run"]
IN_BACKGROUND = ["sh", "-c", 'set -m; "$@" & wait $!', "sh"]  # a group of its own, which may not read the terminal
ANSWERS = [b"x = 42\n", b"c\n"]
PROMPT = b"(Pdb) "
STOPS = """\
import os
x = 41
breakpoint()
print("x is", x)
raise SystemExit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
"""


def take_terminal() -> None:
    """In a child that leads a session: make its standard input the terminal of it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def answer_prompts(terminal: int) -> bytes:
    """Read until nobody has the terminal any more, and answer each prompt; returns what was shown."""
    shown, num_answered = b"", 0
    until = time.monotonic() + scaled(40)
    while select.select([terminal], [], [], max(0.0, until - time.monotonic()))[0]:
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            return shown
        shown += piece
        while shown.count(PROMPT) > num_answered:
            os.write(terminal, ANSWERS[num_answered % len(ANSWERS)])
            num_answered += 1
    raise AssertionError(f"no end, but: {shown.decode()}")


def test_a_worker_stops_in_the_debugger_also_when_it_was_started_again_and_the_launcher_is_in_the_background(
    tmp_path: Path,
) -> None:
    script = tmp_path / "stops.py"
    script.write_text(STOPS)
    ours, theirs = pty.openpty()
    launcher = subprocess.Popen(
        [*IN_BACKGROUND, *RUN, "--max-restarts=1", str(script)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    os.close(theirs)
    try:
        shown = answer_prompts(ours)
        assert launcher.wait(scaled(10)) == 0, shown
    finally:
        launcher.kill()
        launcher.wait()
        os.close(ours)
    assert shown.count(b"x is 42") == 2
