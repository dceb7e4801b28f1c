"""A pipeline on two hosts: one is cut off under load, and no request is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from multiworld.testing import Network, scaled
from multiworld.testing.deadlines import wait_until
from multiworld.testing.hosts import Host
from tests import warm_programs

APP = """
from multiworld.serving import Pipeline, Stage


def add_one(x):
    return x + 1


def double(x):
    return x * 2


pipeline = Pipeline([Stage("add", add_one, replicas=2), Stage("double", double, replicas=2)], name="two", lease_s=1.0)
"""
CLIENT = """
import json, sys, threading, time, urllib.request

url, seconds = sys.argv[1], float(sys.argv[2])
until, lock = time.monotonic() + seconds, threading.Lock()
found = {"answers": 0, "wrong": 0, "errors": [], "slowest_s": 0.0}


def client(number):
    while time.monotonic() < until:
        body = json.dumps({"inputs": [number, 1]}).encode()
        began = time.monotonic()
        try:
            request = urllib.request.Request(url, body, {"content-type": "application/json"})
            with urllib.request.urlopen(request, timeout=20) as answer:
                outputs = json.load(answer)["outputs"]
        except OSError as error:
            with lock:
                found["errors"].append(repr(error))
            continue
        with lock:
            found["answers"] += 1
            found["wrong"] += outputs != [2 * (number + 1), 4]
            found["slowest_s"] = max(found["slowest_s"], time.monotonic() - began)


threads = [threading.Thread(target=client, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps(found))
"""
COMMAND = [str(Path(sys.executable).with_name("multiworld")), "serve"]
CONTROL_PORT, HTTP_PORT = 7400, 8400
LEASE_S = 1.0


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(2) as network:
        yield network


class Served:
    """The deployment over two hosts; ``end`` ends both."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.first, self.second = network.hosts
        self.folder = folder
        (folder / "app.py").write_text(APP)
        (folder / "client.py").write_text(CLIENT)
        address = self.first.address
        self.processes = [
            self._popen(
                self.first,
                *(*COMMAND, "app.py", "--address", address, "--control-port", str(CONTROL_PORT)),
                *("--host", address, "--port", str(HTTP_PORT), "--hosts", "2"),
            ),
            self._popen(
                self.second, *COMMAND, "join", f"{address}:{CONTROL_PORT}", "--name", "second",
            ),
        ]  # fmt: skip

    def _popen(self, host: Host, *command: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "MULTIWORLD_TOKEN": "secret", "XDG_RUNTIME_DIR": str(self.folder)}
        with (self.folder / "log").open("ab") as log:
            return host.popen(
                *command, cwd=self.folder, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def output(self) -> str:
        return (self.folder / "log").read_text()

    def status(self) -> dict[str, Any]:
        done = warm_programs.run(
            [*("ip", "netns", "exec", self.first.netns), *COMMAND, "status", "--json"],
            env={**os.environ, "XDG_RUNTIME_DIR": str(self.folder)},
            capture_output=True,
            text=True,
            check=False,
        )
        status: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
        return status

    def open_replicas(self) -> dict[str, str]:
        """Return the host of each replica that takes requests."""
        return {replica["id"]: replica["host"] for replica in self.status().get("replicas", []) if replica["open"]}

    def load(self, seconds: float) -> subprocess.Popen[bytes]:
        url = f"http://{self.first.address}:{HTTP_PORT}/infer"
        return self.first.popen(
            sys.executable, str(self.folder / "client.py"), url, str(seconds), stdout=subprocess.PIPE
        )

    def end(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(scaled(30))


@pytest.mark.alone
def test_no_request_is_lost_when_a_host_is_cut_off_and_its_replicas_come_back_elsewhere(
    network: Network, tmp_path: Path
) -> None:
    served = Served(network, tmp_path)
    try:
        assert wait_until(lambda: len(served.open_replicas()) == 4, scaled(40)), served.output
        assert sorted(served.open_replicas().values()).count("second") == 2, served.open_replicas()
        loading = served.load(scaled(8))
        time.sleep(1.0)  # under load
        served.second.cut()
        out, _ = loading.communicate(timeout=scaled(40))
        found = json.loads(out)
        assert (found["errors"], found["wrong"]) == ([], 0), served.output
        assert found["answers"] > 100
        assert found["slowest_s"] <= LEASE_S + scaled(0.5), found
        assert wait_until(
            lambda: len(here := served.open_replicas()) == 4 and "second" not in here.values(), scaled(20)
        ), served.output
    finally:
        network.heal()
        served.end()
