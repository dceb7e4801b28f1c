"""``multiworld serve`` as a person uses it: up, asked, changed, injured, stopped."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from multiworld.process.facts import catches_signal
from multiworld.testing.deadlines import wait_until
from tests import warm_programs

pytestmark = pytest.mark.process

APP = """
import torch
from multiworld.serving import Pipeline, Stage


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return x * self.factor


def add_one(x):
    print("adding", x.numel(), flush=True)
    if x.numel() == 13:
        raise RuntimeError("thirteen")
    return x + 1


stages = [Stage("add", add_one, limit_s=1.0), Stage("scale", Scale, replicas=2, limit_s=1.0)]
pipeline = Pipeline(stages, name="calc", preload=["app"])
not_one = 3
typing = Pipeline([Stage("add", add_one)], policy="sticky", generation={"max_runing": 8})
"""
COMMAND = [str(Path(sys.executable).with_name("multiworld")), "serve"]
UP_S = 40.0


OPTIONS = ("--port", "0", "--cors-origin", "https://app.example.org")


class Deployment:
    """One that runs, and how to ask it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
        (folder / "app.py").write_text(APP)
        with (folder / "log").open("w+b") as log:
            self.process = subprocess.Popen(
                ["sh", "-c", 'ulimit -Sn 1024 && exec "$@"', "sh", *COMMAND, "app.py:pipeline", *OPTIONS],
                cwd=folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        assert wait_until(lambda: "answers at" in self.output or self.process.poll() is not None, UP_S), self.output
        assert "answers at" in self.output, self.output
        self.url = self.output.split("answers at ")[1].split()[0]

    @property
    def output(self) -> str:
        return (self.folder / "log").read_text()

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return warm_programs.run(
            [*COMMAND, *arguments], env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=60
        )

    def status(self) -> dict[str, Any]:
        done = self.command("status", "--json")
        assert done.returncode == 0, done.stderr
        status: dict[str, Any] = json.loads(done.stdout)
        return status

    def is_whole(self) -> bool:
        """Whether the controller answers, and has all its members."""
        done = self.command("status", "--json")
        status = json.loads(done.stdout) if done.returncode == 0 else {"ready": False}
        return bool(status["ready"]) and not status["resuming"]

    def infer(self, numbers: list[float]) -> list[float]:
        request = urllib.request.Request(
            f"{self.url}/infer", json.dumps({"inputs": numbers}).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            outputs: list[float] = json.load(answer)["outputs"]
        return outputs

    def opened_requests(self) -> int:
        with urllib.request.urlopen(f"{self.url}/status", timeout=20) as answer:
            return int(json.load(answer)["gateway"]["requests_open"]) - 1  # this one is open, too

    def answers(self) -> bool:
        try:
            return self.infer([1, 2]) == [4, 6]
        except OSError:  # nobody listens yet, or not ready
            return False

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def following(deployment: Deployment, *arguments: str) -> Iterator[Callable[[], list[str]]]:
    """Run a command that goes on, and give what returns its whole lines until now."""
    path = deployment.folder / "followed"
    with path.open("wb") as output:
        process = subprocess.Popen([*COMMAND, *arguments], env=deployment.environment, stdout=output)
    try:
        yield lambda: path.read_text().rpartition("\n")[0].splitlines()
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    started = Deployment(tmp_path_factory.mktemp("serve"))
    yield started
    started.end()


def test_answers_and_names_the_stage_that_failed(deployment: Deployment) -> None:
    assert "was not preloaded" not in deployment.output
    assert deployment.infer([1, 2, 3]) == [4, 6, 8]
    with pytest.raises(urllib.error.HTTPError) as failed:
        deployment.infer([0.0] * 13)
    assert failed.value.code == 500
    body = json.load(failed.value)["error"]
    assert (body["stage"], "thirteen" in body["message"]) == ("add", True)
    assert deployment.infer([1]) == [4]


def test_its_processes_may_open_more_than_the_usual_number_of_descriptors(deployment: Deployment) -> None:
    hard = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 1 << 20)
    status = deployment.status()
    for member in (*status["gateways"], *status["replicas"]):
        limits = Path(f"/proc/{member['pid']}/limits").read_text()
        assert re.search(rf"^Max open files\s+{hard}\s", limits, re.MULTILINE), limits


def test_only_pages_of_the_site_that_was_named_may_ask(deployment: Deployment) -> None:
    def ask(origin: str) -> str | None:
        headers = {"content-type": "application/json", "origin": origin}
        request = urllib.request.Request(f"{deployment.url}/infer", b'{"inputs":[1]}', headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            allowed: str | None = answer.headers["access-control-allow-origin"]
        return allowed

    assert ask("https://app.example.org") == "https://app.example.org"
    with pytest.raises(urllib.error.HTTPError, match="403"):
        ask("https://evil.example.org")


def test_shows_what_replicas_wrote_and_follows_it(deployment: Deployment) -> None:
    deployment.infer([1.0] * 7)
    for of in ("add-1", "add"):
        assert wait_until(lambda of=of: "[add-1] adding 7" in deployment.command("logs", of).stdout, UP_S)  # type: ignore[misc]
    everybody = deployment.command("logs", "-n", "1", "--json")
    assert {"member": "add-1", "line": "[add-1] adding 7"} in map(json.loads, everybody.stdout.splitlines())
    unknown = deployment.command("logs", "scael-1")
    assert (unknown.returncode, "there is no replica 'scael-1'" in unknown.stderr) == (1, True)
    with following(deployment, "logs", "add", "-f", "-n", "0") as lines:
        assert wait_until(lambda: deployment.infer([1.0] * 9) == [4.0] * 9 and "[add-1] adding 9" in lines(), UP_S)


def test_follows_what_happens(deployment: Deployment) -> None:
    (last,) = map(json.loads, deployment.command("events", "-n", "1", "--json").stdout.splitlines())
    assert last["number"] > 1
    assert len(deployment.command("events", "-n", "2").stdout.splitlines()) == 2
    assert deployment.command("events", "-n", "0").stdout == ""
    told = r"\d\d:\d\d:\d\d\.\d{3}  ReplicaReady  add-1 takes requests, .* after it was ordered"
    assert re.search(told, deployment.command("events").stdout)
    with following(deployment, "events", "-f", "-n", "1", "--json") as lines:
        assert wait_until(lambda: bool(lines()), UP_S)
        assert deployment.command("tune", "add", "--batch-max-size", "3").returncode == 0
        assert wait_until(lambda: any(json.loads(line)["kind"] == "Tuned" for line in lines()), UP_S)
        assert json.loads(lines()[0])["number"] == last["number"]


def test_is_changed_at_run_time(deployment: Deployment) -> None:
    assert deployment.command("scale", "scale", "3").returncode == 0
    replicas = [replica["id"] for replica in deployment.status()["replicas"] if replica["stage"] == "scale"]
    assert len(replicas) == 3
    assert deployment.command("drain", replicas[0], "--scale-down").returncode == 0
    assert replicas[0] not in [replica["id"] for replica in deployment.status()["replicas"]]
    refused = deployment.command("scale", "nothing", "2")
    assert refused.returncode == 1
    assert "'nothing'" in refused.stderr
    assert "ReplicaReady" in deployment.command("events").stdout


def test_a_killed_controller_is_followed_by_one_that_takes_over(deployment: Deployment) -> None:
    before = {replica["id"]: replica["pid"] for replica in deployment.status()["replicas"]}
    os.kill(_pid_of(deployment, "controller"), signal.SIGKILL)
    assert deployment.infer([1, 2]) == [4, 6]
    assert wait_until(deployment.is_whole, 20), deployment.output
    assert {replica["id"]: replica["pid"] for replica in deployment.status()["replicas"]} == before


def test_what_is_followed_goes_on_with_the_next_controller(deployment: Deployment) -> None:
    assert deployment.infer([1.0] * 12) == [4.0] * 12
    with following(deployment, "logs", "add", "-f", "-n", "1") as lines:
        assert wait_until(lambda: "[add-1] adding 12" in lines(), UP_S)
        os.kill(_pid_of(deployment, "controller"), signal.SIGKILL)
        assert wait_until(deployment.is_whole, 20), deployment.output
        shown = len(lines())
        assert deployment.infer([1.0] * 11) == [4.0] * 11
        assert wait_until(lambda: "[add-1] adding 11" in lines()[shown:], UP_S)
        # Another line may well come twice: that the controller has died, as it has before this test.
        assert lines().count("[add-1] adding 12") == 1, "nothing is shown twice"


def test_a_controller_that_was_stopped_takes_its_members_back(deployment: Deployment) -> None:
    before = {replica["id"]: replica["pid"] for replica in deployment.status()["replicas"]}
    controller = _pid_of(deployment, "controller")
    os.kill(controller, signal.SIGSTOP)
    time.sleep(4.5)  # longer than the lease, in which the others give it up, and than a hanging work is waited for
    assert deployment.infer([1, 2]) == [4, 6]
    asking = subprocess.Popen([*COMMAND, "status", "--json"], env=deployment.environment, stdout=subprocess.DEVNULL)
    time.sleep(1.0)  # what it is asked is what it hears of first
    os.kill(controller, signal.SIGCONT)
    assert asking.wait(20) == 0
    time.sleep(1.0)
    assert wait_until(deployment.is_whole, 20), deployment.output
    assert {replica["id"]: replica["pid"] for replica in deployment.status()["replicas"]} == before
    assert deployment.infer([1, 2]) == [4, 6]


def test_a_killed_gateway_answers_again_at_the_same_port(deployment: Deployment) -> None:
    (gateway,) = deployment.status()["gateways"]
    os.kill(gateway["pid"], signal.SIGKILL)
    assert wait_until(deployment.answers, 20), deployment.output


def test_a_gateway_that_hangs_is_killed_and_answers_again(deployment: Deployment) -> None:
    (gateway,) = deployment.status()["gateways"]
    os.kill(gateway["pid"], signal.SIGSTOP)
    assert wait_until(lambda: not Path(f"/proc/{gateway['pid']}").exists(), 20), deployment.output
    assert wait_until(deployment.answers, 20), deployment.output


def test_a_second_one_of_that_name_is_refused(deployment: Deployment) -> None:
    second = deployment.command("app.py:pipeline", "--port", "0")
    assert second.returncode == 1
    assert "a deployment 'calc' runs already" in second.stderr


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("app.py:missing", "missing"),
        ("app.py:not_one", "expected a multiworld.serving.Pipeline"),
        ("nowhere.py", "no such file"),
        ("app.py:pipeline --replicas nope=2", "there is no such stage"),
        ("app.py:pipeline --host nowhere", "numeric address"),
        ("app.py:pipeline --host 192.0.2.7", "cannot listen at 192.0.2.7"),
        ("app.py:pipeline --address 192.0.2.7", "cannot listen at 192.0.2.7"),
        ("app.py:pipeline --address 0.0.0.0", "--address must be one of this host's own"),
        ("app.py:pipeline --cors-origin app.example.org", "must be a scheme, a host"),
        ("app.py:pipeline --allow-host example.org:80", "without a port"),
        ("app.py:pipeline --port 99999", "from 0 to 65535"),
        ("app.py:pipeline --control-port -1", "from 0 to 65535"),
        ("app.py:pipeline --name a/b", "a pipeline's name has"),
        ("app.py:typing", "max_runing"),
    ],
)
def test_says_what_is_wrong_with_a_target(deployment: Deployment, target: str, said: str) -> None:
    named = [] if "--name" in target else ["--name", "other"]
    refused = deployment.command(*target.split(), *named)
    assert refused.returncode in (1, 2)
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr


def test_says_at_once_that_its_port_is_taken(deployment: Deployment) -> None:
    refused = deployment.command("app.py:pipeline", "--name", "other", "--port", deployment.url.rpartition(":")[2])
    assert refused.returncode == 2
    assert "Choose others by --host and --port" in refused.stderr
    control = deployment.status()["address"][1]
    refused = deployment.command("app.py:pipeline", "--name", "other", "--port", "0", "--control-port", str(control))
    assert refused.returncode == 2
    assert "by --address and --control-port" in refused.stderr


def test_stops_when_told_and_leaves_nothing(deployment: Deployment) -> None:
    pids = [replica["pid"] for replica in deployment.status()["replicas"]]
    host, _, port = deployment.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), 20) as late:  # a request that is there only in part
        late.sendall(b"POST /infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 14\r\n\r\n" + b'{"inputs"')
        assert wait_until(lambda: deployment.opened_requests() == 1, 20), deployment.output
        stopping = subprocess.Popen([*COMMAND, "stop"], env=deployment.environment, stdout=subprocess.DEVNULL)
        assert wait_until(lambda: "waits for 1 open request to be answered" in deployment.output, 20)
        late.sendall(b":[1]}")
        assert b" 503 " in late.recv(1 << 16)
    assert stopping.wait(20) == 0
    assert deployment.process.wait(0.5) == 0, deployment.output
    assert "1 open request: 0 answered, 1 given up (503)" in deployment.output
    assert deployment.output.endswith("calc has ended\n")
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    gone = deployment.command("status")
    assert gone.returncode == 1
    assert "no deployment of this user runs" in gone.stderr


def _pid_of(deployment: Deployment, member: str) -> int:
    """The controller is not among its own members: it is the child of the host process that takes SIGTERM."""
    children = Path(f"/proc/{deployment.process.pid}/task/{deployment.process.pid}/children").read_text().split()
    known = {entry["pid"] for kind in ("replicas", "gateways") for entry in deployment.status()[kind]}
    (pid,) = {int(child) for child in children if catches_signal(int(child), signal.SIGTERM)} - known
    return pid
