"""The controller with real processes: members that are killed, stopped and replaced, and its own end and return."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

import multiworld as mw
from multiworld.process.facts import catches_signal
from multiworld.serving.control.client.client import ask
from multiworld.serving.control.client.questions import (
    ControllerQuestion,
    Done,
    EventsSince,
    EventsTold,
    ScaleStage,
    StatusOf,
    StatusTold,
    StopAll,
)
from multiworld.serving.control.controller import Controller
from multiworld.serving.control.lines import AttachedLine
from multiworld.serving.control.requests import answer
from multiworld.serving.control.spec import DeploymentSpec
from multiworld.serving.control.status import ControllerStatus
from multiworld.serving.errors import DeploymentError
from multiworld.serving.graph import Graph, Stage
from multiworld.serving.hosts.order import Order
from multiworld.serving.hosts.owner.start import start_host
from multiworld.wire.messages import from_json, to_json
from tests.process.serving_members import FakeMember

A = TypeVar("A")

pytestmark = pytest.mark.process

PROGRAM = "tests.process.serving_members:main"
LEASE_S = 1.0


def spec_of(folder: Path, **changes: Any) -> DeploymentSpec:
    fields: dict[str, Any] = {
        "name": "test",
        "job": "serving-test",
        "token": "secret",
        "folder": folder,
        "graph": Graph([Stage("a", "m:w"), Stage("b", "m:w", replicas=2)]),
        "lease_s": LEASE_S,
        "replica_program": PROGRAM,
        "gateway_program": PROGRAM,
    }
    return DeploymentSpec(**fields | changes)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@asynccontextmanager
async def deployed(folder: Path) -> AsyncIterator[Controller]:
    """A controller and a gateway in this process, a host process, and three members on it."""
    spec = spec_of(folder)
    async with mw.WorldManager(job=spec.job, token=spec.token, lease_s=LEASE_S, host="127.0.0.1") as manager:
        controller = Controller(spec, manager=manager, answer=answer)
        await controller.start()
        arguments = {"member": "gateway-0", "stage": "gateway", "store": controller.store, "folder": str(folder)}
        gateway = FakeMember(manager, arguments, lambda message: line.tell(message))
        line = controller.attach("gateway-0", gateway.obey)
        line.tell(gateway.hello())
        parting = asyncio.ensure_future(_part(gateway, line))
        host = start_host(controller.address, spec.token, name="here")
        try:
            await controller.operations.wait_ready(30)
            await controller.operations.wait_complete(10)
            yield controller
            await controller.stop()
            await until(lambda: host.returncode is not None, 5)
        finally:
            parting.cancel()
            gateway.stop()
            await controller.aclose()
            host.abort()


async def _part(gateway: FakeMember, line: AttachedLine) -> None:
    await gateway.left.wait()
    line.close()


def replicas(status: ControllerStatus | dict[str, Any], stage: str = "") -> dict[str, int]:
    """Return the pids of the replicas that take requests."""
    known = status if isinstance(status, ControllerStatus) else from_json(ControllerStatus, status)
    return {each.id: each.pid or 0 for each in known.replicas if each.open and each.id.startswith(stage)}


async def until(holds: Callable[[], bool], timeout_s: float = 15.0) -> float:
    """Wait for something, and return how long that took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < timeout_s, "it did not come to that in time"
        await asyncio.sleep(0.01)
    return time.monotonic() - began


def _fail(event: object) -> None:
    raise AttributeError("it has no such thing")


@pytest.mark.alone
async def test_members_are_replaced_when_killed_or_stopped_and_donors_when_they_die(tmp_path: Path) -> None:
    async with deployed(tmp_path) as controller:
        before = replicas(controller.status(), "b")
        assert list(before) == ["b-1", "b-2"]
        controller.on_event = _fail  # as if nobody listened

        os.kill(before["b-1"], signal.SIGKILL)
        killed_s = await until(lambda: list(replicas(controller.status(), "b")) == ["b-2", "b-3"])
        assert (tmp_path / "b-3.loaded").read_text() == "b-2 1"
        assert killed_s < 3

        os.kill(before["b-2"], signal.SIGSTOP)
        stopped_s = await until(lambda: list(replicas(controller.status(), "b")) == ["b-3", "b-4"])
        assert stopped_s < LEASE_S + 3

        (tmp_path / "b-3.dies").touch()
        (tmp_path / "b-4.dies").touch()
        await controller.operations.scale("b", 3, timeout_s=30)
        loaded = {path.stem: path.read_text() for path in tmp_path.glob("b-*.loaded")}
        assert loaded["b-5"] == "init 0"
        assert all(name in controller.status().stages for name in ("a", "b"))


async def test_updates_are_rolled_out_and_back_and_replicas_drained(tmp_path: Path) -> None:
    async with deployed(tmp_path) as controller:
        assert await controller.operations.update("b", {"w": torch.full((2,), 7.0)}, settle_s=0.1) == 2
        status = controller.status()
        assert [each.version for each in status.replicas if each.stage == "b"] == [2, 2]
        assert (tmp_path / "b-3.loaded").read_text() == "init 7"
        with pytest.raises(DeploymentError, match="these weights are bad"):
            await controller.operations.update("b", {"bad": torch.zeros(1)}, settle_s=0.1)
        assert list(replicas(controller.status(), "b")) == ["b-3", "b-4"]
        await controller.operations.drain("b-3")
        await controller.operations.scale("b", 4, timeout_s=None)
        await controller.operations.scale(
            "b", 1
        )  # in the same turn of the loop: those are not started first and forgotten then
        assert len(replicas(controller.status(), "b")) == 1
        (host,) = controller._hosts.values()
        await until(lambda: set(host.members) == {each.id for each in controller.status().replicas})
        with pytest.raises(DeploymentError, match="cannot be read"):
            await controller.operations.update("b", tmp_path / "none.pt")
        await controller.operations.scale("b", 2)


async def test_a_killed_controller_comes_back_and_adopts_all_that_runs(tmp_path: Path) -> None:
    address = ("127.0.0.1", free_port())
    store = f"tcp://127.0.0.1:{free_port()}"
    spec = spec_of(tmp_path, address=address, store=store, gateways=1)
    order = Order(
        member="controller",
        program="multiworld.serving.control.controller_program:main",
        arguments=spec.to_json(),
        keep=True,
    )
    host = start_host(address, spec.token, name="here", members=[order])

    async def command(question: ControllerQuestion, answer: type[A]) -> A:
        return await asyncio.to_thread(ask, address, spec.token, question, answer, 5.0)

    async def status() -> dict[str, Any]:
        return to_json((await command(StatusOf(), StatusTold)).status)

    try:
        await host.wait_ready(30)
        first = await _when(status, lambda seen: seen["ready"] and len(replicas(seen)) == 3)
        os.kill(_child(host.pid, first), signal.SIGKILL)
        second = await _when(status, lambda seen: not seen["resuming"] and seen["ready"] and len(replicas(seen)) == 3)
        assert replicas(second) == replicas(first)
        assert [each["pid"] for each in second["gateways"]] == [each["pid"] for each in first["gateways"]]
        os.kill(replicas(second)["b-1"], signal.SIGKILL)
        await _when(status, lambda seen: list(replicas(seen, "b")) == ["b-2", "b-3"])
        with pytest.raises(DeploymentError, match="there is no 'c'"):
            await command(ScaleStage(stage="c", replicas=2), Done)
        assert (await command(EventsSince(), EventsTold)).events[-1].kind
        assert await command(StopAll(), Done) == Done()
        await until(lambda: host.returncode is not None)
        assert not (tmp_path / "controller.json").exists()
    finally:
        host.abort()


async def _when(
    look: Callable[[], Any], holds: Callable[[dict[str, Any]], bool], timeout_s: float = 20.0
) -> dict[str, Any]:
    """Look again and again until something holds, while the controller may be gone."""
    deadline = time.monotonic() + timeout_s
    seen: dict[str, Any] = {}
    while time.monotonic() < deadline:
        try:
            seen = await look()
        except (DeploymentError, OSError):
            seen = {}
        if seen and holds(seen):
            return seen
        await asyncio.sleep(0.05)
    raise AssertionError(f"it did not come to that in time: {seen}")


def _child(host: int, status: dict[str, Any]) -> int:
    """Return the controller's pid: that child of the host process which is no member and ends by SIGTERM."""
    known = {each["pid"] for each in status["replicas"] + status["gateways"]}
    children = Path(f"/proc/{host}/task/{host}/children").read_text().split()
    (pid,) = {int(child) for child in children if catches_signal(int(child), signal.SIGTERM)} - known
    return pid
