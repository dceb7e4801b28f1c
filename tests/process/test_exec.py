"""``multiworld exec``: ranks of any program on two hosts over a stand-in for ssh; a host that fails; Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from multiworld.testing import wait_until
from tests import warm_programs

EXEC = [sys.executable, "-m", "multiworld", "exec"]
SSH = """\
#!/bin/sh
# Stands for ssh: runs the command line here, and cannot resolve one name.
host=$1
shift
if [ "$host" = nosuch ]; then
    echo "ssh: Could not resolve hostname nosuch" >&2
    exit 255
fi
exec env -i PATH="$PATH" HOME=/ sh -c "cd / && exec $*"
"""
ENDS_WITH_INPUT = """\
#!/bin/sh
# Stands for a far end: notes what it was told, then waits for the end of its input.
cat > "$(dirname "$0")/told.$$"
"""


@pytest.fixture
def ssh(tmp_path: Path) -> str:
    return _script(tmp_path / "ssh", SSH)


def _script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_ranks_on_two_hosts_make_one_job_in_one_directory_and_ctrl_c_ends_them(ssh: str, tmp_path: Path) -> None:
    show = 'echo "$RANK/$WORLD_SIZE $LOCAL_RANK $(pwd) $GREETING ${HIDDEN-no}" > "new$RANK"; mv "new$RANK" "told$RANK"'
    heed, wait = 'trap "touch ended$RANK; exit" TERM', "while :; do sleep 0.1; done"  # in place before it is told
    hosts = ["-n", "3", "--hosts", "127.0.0.1,127.0.0.2:2", "--ssh", ssh]
    running = warm_programs.Popen(
        [*EXEC, *hosts, "-x", "GREETING=a b", "sh", "-c", f"{heed}; {show}; {wait}"],
        cwd=tmp_path,
        env={**os.environ, "HIDDEN": "1"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        told = [tmp_path / f"told{rank}" for rank in range(3)]
        have_begun = wait_until(lambda: all(each.exists() for each in told) or running.poll() is not None, 30)
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does
        _, errors = running.communicate(timeout=20)
    finally:
        running.kill()
        running.wait()
    assert have_begun, errors
    expected = [f"{rank}/3 {local} {tmp_path} a b no\n" for rank, local in enumerate((0, 0, 1))]
    assert [each.read_text() for each in told] == expected
    assert running.returncode == 128 + signal.SIGINT, errors
    assert all((tmp_path / f"ended{rank}").exists() for rank in range(3)), errors


def test_a_host_that_cannot_be_reached_ends_the_job_with_one_line(ssh: str, tmp_path: Path) -> None:
    far_end = _script(tmp_path / "python", ENDS_WITH_INPUT)
    ran = warm_programs.run(
        [*EXEC, "--hosts", "127.0.0.1,nosuch", "--ssh", ssh, "--python", far_end, "true"],
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert ran.returncode == 255
    reason, line = ran.stderr.splitlines()
    assert reason == "ssh: Could not resolve hostname nosuch"
    assert line == (
        f"multiworld exec: nosuch: {ssh} ended with status 255, and the job was ended on the other hosts: "
        "was it reached, and can you log in there without a password?"
    )


def test_this_host_takes_part_without_ssh_and_errors_speak_of_exec(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    _script(tmp_path / "bin" / "ssh", SSH.replace("host=$1\n", 'echo "$2" > asked; shift\nhost=$1\n'))
    ran = warm_programs.run(
        [*EXEC, "--hosts", f"{socket.gethostname()},far.invalid", "sh", "-c", 'exit "$RANK"'],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
        stderr=subprocess.PIPE,
        text=True,
        timeout=40,
    )
    assert (tmp_path / "asked").read_text() == "far.invalid\n"
    assert ran.returncode == 1, ran.stderr
    assert "multiworld exec: rank 1 (local rank 0, pid " in ran.stderr
    assert "multiworld run" not in ran.stderr


def test_a_far_end_without_the_directory_says_so_and_starts_nothing(tmp_path: Path) -> None:
    order = {"host": "a", "directory": str(tmp_path / "nosuch"), "variables": {}, "arguments": ["--no-python", "true"]}
    ran = warm_programs.run(
        [sys.executable, "-m", "multiworld.elastic.remote_agent"],
        input=json.dumps(order) + "\n",
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert ran.returncode == 2
    assert ran.stderr == (
        f"multiworld exec: a cannot take part: its directory {tmp_path / 'nosuch'}: No such file or directory\n"
    )
