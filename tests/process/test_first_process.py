"""A command that is the first process of a container: it is the parent of strangers' orphans, and reaps them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from multiworld.testing import wait_until

UNSHARE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
STRANGER = "(setsid sleep 0.1 & echo $!) ; (sleep 0.1 & echo $!)"  # what is left of `docker exec`
MAIN = "import sys; from multiworld.cli.main import main; sys.exit(main())"
WAIT_S = 20.0


def why_not() -> str | None:
    if os.geteuid() != 0:
        return "needs root, to be the first process of a pid namespace"
    try:
        subprocess.run([*UNSHARE, "true"], check=True, capture_output=True, timeout=10)
    except (OSError, subprocess.SubprocessError) as error:
        return f"no pid namespace can be made: {error}"
    return None


pytestmark = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")


@contextmanager
def first_process(*command: str, ready: str) -> Iterator[int]:
    """Run it in a namespace of its own until it says that it is ready; its pid outside."""
    environment = {**os.environ, "MULTIWORLD_TOKEN": "a token for strangers' orphans", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*UNSHARE, sys.executable, "-c", MAIN, *command],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    ) as unshare:
        assert unshare.stdout is not None
        try:
            seen: list[str] = []
            while not seen or ready not in seen[-1]:
                seen.append(unshare.stdout.readline())
                assert seen[-1], seen
            task = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children")
            yield int(task.read_text())
        finally:
            unshare.kill()


def zombies_of(pid: int) -> list[str]:
    """The names of its children that ended and were not reaped."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue
        state, parent, *_ = rest.split()
        if state == "Z" and int(parent) == pid:
            found.append(name.partition("(")[2])
    return found


@pytest.mark.parametrize(
    ("command", "ready"),
    [
        (("run", "--no-page", "--no-python", "sh", "-c", "echo is up; exec sleep 600"), "is up"),
        (("serve", "join", "127.0.0.1:9"), "there is no controller at"),
    ],
    ids=["run", "serve join"],
)
def test_the_first_process_reaps_strangers_and_not_its_own(command: tuple[str, ...], ready: str) -> None:
    with first_process(*command, ready=ready) as pid:
        enter = ["nsenter", "--target", str(pid), "--pid", "--mount", "setsid", "sh", "-c", STRANGER]
        assert len(subprocess.run(enter, capture_output=True, check=True).stdout.split()) == 2
        assert wait_until(lambda: zombies_of(pid) == ["sleep", "sleep"] or not zombies_of(pid), WAIT_S)
        assert wait_until(lambda: not zombies_of(pid), WAIT_S)
