"""A training on three hosts over real ssh: it goes on when a cable is pulled, or its coordinator is killed."""

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
from typing import Any

import pytest

from multiworld.testing import Host, Network, wait_until
from tests.process.running import runs_in
from tests.process.ssh_server import configure, foreground, why_not

PROGRAM = """\
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("works as rank", os.environ["RANK"], flush=True)
while True:
    signal.pause()
"""
TIMEOUT_S = 60
SSH_PORT = 2022
pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(150),
]


class Training:
    """The command on the first host, and the three hosts that it uses."""

    def __init__(self, network: Network, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.near, *self.nodes = network.hosts
        self.process, self._output = process, folder / "output"

    def wait_for(self, pattern: str, times: int = 1) -> re.Match[str]:
        found: list[re.Match[str]] = []

        def have_come() -> bool:
            found[:] = re.finditer(pattern, self._output.read_text())
            return len(found) >= times or self.process.poll() is not None

        assert wait_until(have_come, TIMEOUT_S), self._output.read_text()
        assert len(found) >= times, self._output.read_text()
        return found[-1]

    def agents(self, asked: Host) -> list[dict[str, Any]]:
        told = asked.run(sys.executable, "-m", "multiworld", "agents", "--job", "cut", "--json", timeout_s=TIMEOUT_S)
        answer: list[dict[str, Any]] = json.loads(told)
        return answer

    def end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(TIMEOUT_S) == 0, self._output.read_text()


@contextmanager
def training(tmp_path: Path) -> Iterator[Training]:
    ssh = configure(tmp_path, SSH_PORT)
    (tmp_path / "train.py").write_text(PROGRAM)
    with Network(4) as network, (tmp_path / "output").open("wb") as output:
        near, *nodes = network.hosts
        (tmp_path / "hosts").write_text("".join(f"{node.address}\n" for node in nodes))
        for node in nodes:
            node.popen(*foreground(tmp_path), stderr=subprocess.DEVNULL)
        line = ("--hostfile", "hosts", "--tag", "cut", "--ssh", ssh, "--remote-dir", str(tmp_path))
        process = near.popen(
            *(sys.executable, "-m", "multiworld", "train", *line, "train.py"),
            cwd=tmp_path,
            env={**os.environ, "MULTIWORLD_TOKEN": "a token for these tests"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        running = Training(network, tmp_path, process)
        running.wait_for("works as rank", 3)
        try:
            yield running
        finally:
            process.kill()
            process.wait()
            assert wait_until(lambda: not runs_in(tmp_path), TIMEOUT_S), "something is left on a host"


def test_a_host_whose_cable_is_pulled_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    with training(tmp_path) as running:
        where = running.wait_for(r"coordinator (\S+):")[1]
        cut, asked = sorted(running.nodes, key=lambda node: node.address == where)[::2]
        cut.cut()
        running.wait_for(rf"{cut.address} was lost: the connection to it has ended; the job goes on with 2 hosts")
        assert cut.address not in [each["hostname"] for each in running.agents(asked)]
        running.end()
        cut.restore()


def test_the_coordinator_is_killed_and_another_one_coordinates(tmp_path: Path) -> None:
    with training(tmp_path) as running:
        where = running.wait_for(r"coordinator (\S+):")[1]
        asked = next(node for node in running.nodes if node.address != where)
        victim = next(each for each in running.agents(asked) if each["coordinates"])
        os.kill(victim["pid"], signal.SIGKILL)
        running.wait_for(rf"{where} ended with status 137; the job goes on with 2 hosts")
        left = running.agents(asked)
        assert {each["hostname"] for each in left} == {node.address for node in running.nodes} - {where}
        assert sum(each["coordinates"] for each in left) == 1
        running.end()
