"""``multiworld train --hostfile``: one job on several hosts, over a stand-in for ssh and over a real sshd.

What dies, here or there, leaves nothing behind: everything on the hosts runs in one folder, by which it is found.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from multiworld.testing import wait_until
from tests import warm_programs
from tests.process.ssh_server import ssh_server, stand_in, why_not

PROGRAM = """\
import os, signal, sys

def leave(signum, frame):
    open(f"ended{os.environ['RANK']}", "w").close()
    sys.exit(0)

signal.signal(signal.SIGTERM, leave)
print("works as rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
print("sees", os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("GREETING"), file=sys.stderr, flush=True)
while True:
    signal.pause()
"""
HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
TOKEN = "a token that nobody may see on a command line"
TIMEOUT_S = 40


class Training:
    """The command, and what it has printed."""

    def __init__(self, folder: Path, tag: str, process: subprocess.Popen[str], output: Path) -> None:
        self.folder, self.tag, self.process, self._output = folder, tag, process, output

    @property
    def output(self) -> str:
        return self._output.read_text()

    def wait_for(self, pattern: str, times: int = 1) -> re.Match[str]:
        """Wait until as many lines match, and return the last."""
        found: list[re.Match[str]] = []

        def have_come() -> bool:
            found[:] = re.finditer(pattern, self.output, re.MULTILINE)
            return len(found) >= times or self.process.poll() is not None

        assert wait_until(have_come, TIMEOUT_S), self.output
        assert len(found) >= times, self.output
        return found[-1]

    def left(self) -> list[str]:
        """Return what runs on the hosts."""
        return [text for _, text in processes_in(self.folder)]

    def agents(self) -> list[dict[str, object]]:
        command = [sys.executable, "-m", "multiworld", "agents", "--job", self.tag, "--json"]
        told = warm_programs.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
        assert told.returncode == 0, told.stderr
        answer: list[dict[str, object]] = json.loads(told.stdout)
        return answer


def processes_in(folder: Path) -> list[tuple[int, str]]:
    """Return the processes whose directory it is, with their command lines."""
    return [(pid, " ".join(words)) for pid, directory, words in processes() if directory == folder]


def ssh_client(command: str, host: str) -> int:
    """Return the process that holds the connection to a host."""
    program = command.split()[0]
    (pid,) = (pid for pid, _, words in processes() if program in words[:2] and host in words)
    return pid


def processes() -> Iterator[tuple[int, Path, list[str]]]:
    """Yield each process with its directory and the words of its command line."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal():
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                yield int(entry.name), (entry / "cwd").readlink(), words
        except OSError:  # it has ended
            continue


@contextmanager
def training(tmp_path: Path, ssh: str, hostfile: str, *options: str) -> Iterator[Training]:
    """Start the command, and leave nothing behind."""
    there = tmp_path / "there"
    there.mkdir()
    (there / "train.py").write_text(PROGRAM)
    (tmp_path / "hosts").write_text(hostfile)
    tag = f"hosts-{os.getpid()}-{tmp_path.name}"
    line = ["--hostfile", str(tmp_path / "hosts"), "--tag", tag, "--ssh", ssh, "--remote-dir", str(there)]
    with (tmp_path / "output").open("wb") as output:
        process = warm_programs.Popen(
            [sys.executable, "-m", "multiworld", "train", *line, *options, "train.py"],
            env={**os.environ, "MULTIWORLD_TOKEN": TOKEN, "GREETING": "is not passed on"},
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
    running = Training(there, tag, process, tmp_path / "output")
    try:
        yield running
    finally:
        process.kill()
        process.wait()
        for pid, _ in processes_in(there):
            os.kill(pid, signal.SIGKILL)


def lines(*names: str) -> str:
    return "# the hosts\n\n" + "".join(f"{name} slots=1\n" for name in names)


@pytest.fixture
def ssh(tmp_path: Path) -> str:
    return stand_in(tmp_path)


@contextmanager
def real_ssh(tmp_path: Path) -> Iterator[str]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with ssh_server(tmp_path, *HOSTS) as command:
        yield command


def oobleck(*arguments: str) -> str:
    ran = warm_programs.run(
        [sys.executable, "-m", "multiworld", "oobleck", *arguments], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert ran.returncode == 0, ran.stderr
    return str(ran.stdout)


def test_hosts_make_one_job_and_what_they_print_comes_here_with_their_names(ssh: str, tmp_path: Path) -> None:
    hostfile = "127.0.0.2 slots=1 devices=3\nme@127.0.0.3 slots=2 # all devices\n"
    with training(tmp_path, ssh, hostfile, "-x", "GREETING=hello") as running:
        running.wait_for(r"works as rank \d of 3$", 3)
        running.wait_for("sees", 3)
        running.wait_for("coordinator")
        shown = running.output.splitlines()
        assert (
            sum(re.fullmatch(r"\[127\.0\.0\.2\] (\[.*\] )?works as rank \d of 3", each) is not None for each in shown)
            == 1
        )
        assert (
            sum(re.fullmatch(r"\[127\.0\.0\.3\] \[.*\] works as rank \d of 3", each) is not None for each in shown) == 2
        )
        assert sorted(re.findall(r"sees (\S+) (.+)$", running.output, re.MULTILINE)) == [
            ("3", "hello"),
            ("None", "hello"),
            ("None", "hello"),
        ]
        assert "[127.0.0.2] Welcome to 127.0.0.2" in shown, "what a login says is passed on"
        assert {each["hostname"] for each in running.agents()} == {*HOSTS[:2]}
        everything = [" ".join(words) for _, _, words in processes()]
        assert any("remote_agent" in text for text in everything)
        assert not any(TOKEN in text for text in everything)
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(TIMEOUT_S) == 0, running.output  # as the launcher: all workers ended well
        assert sorted(path.name for path in running.folder.glob("ended*")) == ["ended0", "ended1", "ended2"]
        assert running.left() == []


def test_a_host_that_cannot_be_reached_ends_all_at_once_with_what_ssh_said(ssh: str, tmp_path: Path) -> None:
    with training(tmp_path, ssh, lines("127.0.0.2", "nosuch")) as running:
        assert running.process.wait(TIMEOUT_S) == 255
        said = "ssh: Could not resolve hostname nosuch: Name or service not known"
        told = f"multiworld train: nosuch cannot be reached: {said}, and the job was ended on the other hosts"
        assert told in running.output.splitlines()
        assert wait_until(lambda: running.left() == [], TIMEOUT_S)


def test_a_host_without_the_program_is_told_by_its_launcher(ssh: str, tmp_path: Path) -> None:
    with training(tmp_path, ssh, lines(*HOSTS[:2]), "nosuch.py") as running:
        assert running.process.wait(TIMEOUT_S) == 2
        assert "] multiworld train: no such script: nosuch.py" in running.output
        assert wait_until(lambda: running.left() == [], TIMEOUT_S)


def test_this_command_is_killed_and_everything_ends_in_order(ssh: str, tmp_path: Path) -> None:
    with training(tmp_path, ssh, lines(*HOSTS[:2])) as running:
        running.wait_for(r"works as rank \d of 2$", 2)
        running.process.send_signal(signal.SIGKILL)
        assert wait_until(lambda: running.left() == [], TIMEOUT_S), running.left()
        assert {path.name for path in running.folder.glob("ended*")} >= {"ended0"}


def test_a_connection_is_cut_and_its_host_leaves_in_order(ssh: str, tmp_path: Path) -> None:
    with training(tmp_path, ssh, lines(*HOSTS)) as running:
        running.wait_for(r"works as rank \d of 3$", 3)
        os.kill(ssh_client(ssh, HOSTS[2]), signal.SIGKILL)
        running.wait_for(rf"{re.escape(HOSTS[2])} ended with status 137; the job goes on with 2 hosts")
        assert wait_until(lambda: len(running.agents()) == 2, TIMEOUT_S)
        assert len(list(running.folder.glob("ended*"))) == 1, "its worker was asked to end, and no other one"
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(TIMEOUT_S) == 0, running.output
        assert running.left() == []


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_an_agent_is_killed_or_stopped_and_the_job_goes_on(signum: int, ssh: str, tmp_path: Path) -> None:
    with training(tmp_path, ssh, lines(*HOSTS)) as running:
        running.wait_for(r"works as rank \d of 3$", 3)
        victim = next(each for each in running.agents() if not each["coordinates"])
        assert isinstance(victim["pid"], int)
        os.kill(victim["pid"], signum)
        assert wait_until(lambda: len(running.agents()) == 2, TIMEOUT_S)
        if signum == signal.SIGKILL:
            running.wait_for(r"ended with status 137; the job goes on with 2 hosts")
        else:
            os.kill(victim["pid"], signal.SIGCONT)
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(TIMEOUT_S) in (0, 130), running.output
        assert wait_until(lambda: running.left() == [], TIMEOUT_S), running.left()


def test_oobleck_lists_the_agents_and_lets_one_go(ssh: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MULTIWORLD_TOKEN", raising=False)
    hostfile = "127.0.0.2 slots=1 devices=0\n127.0.0.3 slots=1 devices=1\n127.0.0.4 slots=2\n"
    devices = dict(zip(HOSTS, ("0", "1", "0,1"), strict=True))
    with training(tmp_path, ssh, hostfile) as running:
        running.wait_for(r"works as rank \d of 4$", 4)
        where = running.wait_for(r"coordinator (\S+):(\d+)")
        there = ("--ip", where[1], "--port", where[2])
        shown = oobleck(*there, "get_agent_list").splitlines()
        assert shown[0] == "=== Agents ==="
        agents = [
            re.fullmatch(r"\[(\d)\] IP: (\S+):\d+ Status: up \(device indices: (\S+)\)", each) for each in shown[1:]
        ]
        assert {each[2]: each[3] for each in agents if each} == devices
        assert [each[1] for each in agents if each] == ["0", "1", "2"]

        victim = agents[1]
        assert victim is not None
        told = oobleck(*there, "kill_agent", "--agent_index", "1")
        assert f"{victim[2]} (" in told
        assert len(list(running.folder.glob("ended*"))) == len(devices[victim[2]].split(","))
        if victim[2] != where[1]:
            assert victim[2] not in oobleck(*there, "get_agent_list")
        running.wait_for(rf"multiworld train: {re.escape(victim[2])} has left the job; the job goes on with 2 hosts")
        monkeypatch.setenv("MULTIWORLD_TOKEN", "another token than that of the job")
        refused = warm_programs.run(
            [sys.executable, "-m", "multiworld", "oobleck", *there, "get_agent_list"], capture_output=True, text=True
        )
        assert refused.returncode == 1


def test_over_a_real_ssh_a_job_runs_is_cut_and_ends(tmp_path: Path) -> None:
    with real_ssh(tmp_path) as command, training(tmp_path, command, lines(*HOSTS)) as running:
        running.wait_for(r"works as rank \d of 3$", 3)
        assert not any(TOKEN in " ".join(words) for _, _, words in processes())
        os.kill(ssh_client(command, HOSTS[2]), signal.SIGKILL)
        running.wait_for(rf"{re.escape(HOSTS[2])} ended with status 137; the job goes on with 2 hosts")
        assert wait_until(lambda: len(running.agents()) == 2, TIMEOUT_S)
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(TIMEOUT_S) == 0, running.output
        assert len(list(running.folder.glob("ended*"))) == 3
        assert wait_until(lambda: running.left() == [], TIMEOUT_S), running.left()


def test_over_a_real_ssh_this_command_is_killed_and_nothing_is_left(tmp_path: Path) -> None:
    with real_ssh(tmp_path) as command, training(tmp_path, command, lines(*HOSTS[:2])) as running:
        running.wait_for(r"works as rank \d of 2$", 2)
        running.process.send_signal(signal.SIGKILL)
        assert wait_until(lambda: running.left() == [], TIMEOUT_S), running.left()


def test_over_a_real_ssh_a_port_where_nobody_listens_is_what_ssh_says(tmp_path: Path) -> None:
    with real_ssh(tmp_path) as command, training(tmp_path, command, f"{HOSTS[0]}\n{HOSTS[1]} port=1\n") as running:
        assert running.process.wait(TIMEOUT_S) == 255
        said = "ssh: connect to host 127.0.0.3 port 1: Connection refused"
        assert f"multiworld train: 127.0.0.3 cannot be reached: {said}" in running.output
        assert wait_until(lambda: running.left() == [], TIMEOUT_S), running.left()
