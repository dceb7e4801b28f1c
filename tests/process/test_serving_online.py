"""A pipeline of real processes: its traces, which weights its answers are of, and updates that prove themselves."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from multiworld.serving import (
    DeadlineExceededError,
    Deployment,
    DeploymentError,
    Pipeline,
    Report,
    Stage,
    Tracing,
)
from multiworld.serving.control.fleet.actions import CanaryPassed
from multiworld.serving.tracing.hops import Sent
from multiworld.world.processes.procfs import EXITED, process_start_time, process_state

pytestmark = pytest.mark.process

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Slow(nn.Module):
    """Takes as many seconds as its input says."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor([2.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(float(x[0]))
        return x * self.factor


def plus_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that in time"
        await asyncio.sleep(0.01)


def spans_of_trace(exporter: Any, trace_id: int) -> list[Any]:
    return [span for span in exporter.get_finished_spans() if span.context.trace_id == trace_id]


async def traced_through_a_death(served: Deployment, exporter: Any) -> None:
    """A replica is killed while it executes the request; another one answers, and the trace shows both."""
    report = Report(traceparent=TRACEPARENT)
    asking = asyncio.create_task(served.infer(torch.tensor([0.2]), report=report))
    await asyncio.sleep(0)  # it was sent in that turn
    (open_,) = served._ingress.requests.all_open()
    assert open_.item.context.hops is not None
    sent = open_.item.context.hops.own[-1]
    assert isinstance(sent, Sent)
    (busy,) = [replica for replica in served.replicas if replica["id"] == sent.to]
    os.kill(busy["pid"], signal.SIGKILL)
    assert float(await asking) == pytest.approx(1.4)  # type: ignore[arg-type]
    assert report.versions == {"slow": (1,), "last": (1,)}
    served._ingress.tracer._provider.force_flush()  # type: ignore[union-attr]
    spans = spans_of_trace(exporter, 0x0AF7651916CD43DD8448EB211C80319C)
    (root,) = [span for span in spans if span.name == "infer online"]
    assert root.parent.span_id == 0xB7AD6B7169203331
    assert [event.name for event in root.events] == ["replayed"]
    lost, won, last = sorted((span for span in spans if span is not root), key=lambda span: span.start_time)
    assert {span.parent.span_id for span in (lost, won, last)} == {root.context.span_id}
    assert (lost.name, won.name, last.name) == ("slow", "slow", "last")
    assert lost.attributes["multiworld.replica"] == busy["id"]
    assert not lost.status.is_ok
    assert "lost" in lost.status.description
    assert won.attributes["multiworld.replica"] != busy["id"]
    assert won.attributes["multiworld.attempt"] == 2
    assert won.attributes["multiworld.compute_s"] == pytest.approx(0.2, abs=0.1)
    assert won.status.description is None
    assert lost.end_time <= won.end_time <= last.end_time


async def updates_prove_themselves(served: Deployment) -> None:
    with pytest.raises(DeploymentError, match=r"stage 'slow' .* 1 of 1 elements that are not finite"):
        await served.update("slow", {"factor": torch.tensor([torch.nan])})
    report = Report()
    assert float(await served.infer(torch.tensor([0.0]), report=report)) == 1.0  # type: ignore[arg-type]
    assert report.versions == {"slow": (1,), "last": (1,)}
    seen = set()
    weights = {"factor": torch.tensor([10.0])}
    updating = asyncio.create_task(served._controller.operations.update("slow", weights, settle_s=0.1))
    while not updating.done():
        answer = await served.infer(torch.tensor([0.01]), report=report)
        seen.add((round(float(answer), 2), report.versions["slow"]))  # type: ignore[arg-type]
    assert await updating == 3
    await served.infer(torch.tensor([0.0]), report=report)
    assert report.versions == {"slow": (3,), "last": (1,)}
    assert seen <= {(1.02, (1,)), (1.1, (3,))}
    assert len(seen) == 2
    passed = [event for event in served.events if isinstance(event, CanaryPassed)]
    assert {event.version for event in passed} == {3}


async def test_what_is_told_of_requests_through_deaths_and_updates() -> None:
    exporters = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    exporter = exporters.InMemorySpanExporter()
    stages = [Stage("slow", Slow, replicas=2), Stage("last", plus_one, canary=torch.zeros(1))]
    pipeline = Pipeline(stages, name="online", lease_s=1.0)
    async with pipeline.deploy(tracing=Tracing(ratio=0.0, exporter=exporter)) as served:
        await served.infer(torch.tensor([0.0]))
        await traced_through_a_death(served, exporter)
        await until(lambda: sum(each["open"] for each in served.replicas if each["stage"] == "slow") == 2)
        with pytest.raises(DeadlineExceededError) as late:
            await served.infer(torch.tensor([0.5]), timeout_s=0.3)
        assert late.value.where == "slow"
        await served.infer(torch.tensor([0.0]))
        await updates_prove_themselves(served)
        assert all(replica["rss_bytes"] > 1 << 20 for replica in served.replicas if replica["stats"])
        assert {span.context.trace_id for span in exporter.get_finished_spans()} == {0x0AF7651916CD43DD8448EB211C80319C}


class Parent:
    """Starts a process of its own, and answers with its number."""

    def __init__(self) -> None:
        self.child = subprocess.Popen(["sleep", "60"])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.child.pid


async def test_what_members_had_started_ends_when_their_host_process_is_killed() -> None:
    async with Pipeline([Stage("parent", Parent)], lease_s=1.0).deploy() as served:
        child = int(await served.infer(torch.tensor([0]), timeout_s=20))  # type: ignore[arg-type]
        (host,) = served._controller._hosts.values()
        born = process_start_time(child)
        assert born is not None
        assert process_state(child, born) != EXITED
        os.kill(host.pid, signal.SIGKILL)
        await until(lambda: process_state(child, born) == EXITED)
