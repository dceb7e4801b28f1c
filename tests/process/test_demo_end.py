"""How the main job ends: interrupted, with its own process killed, and where it cannot begin."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from multiworld.testing.deadlines import scaled, wait_until

from .demo_process import Demo, start_demo, started_demos, still_run

pytestmark = [pytest.mark.process, pytest.mark.timeout(scaled(120))]


@pytest.fixture
def demos() -> Iterator[list[Demo]]:
    with started_demos() as started:
        yield started


def test_interrupt_ends_every_process(demos: list[Demo]) -> None:
    demo = start_demo(demos, "--seconds", "60")
    demo.read_until("full load")
    processes = demo.descendants()
    assert len(processes) >= 5, "four replicas, and the process that starts them"
    demo.process.send_signal(signal.SIGINT)
    status, output = demo.finish()
    assert status == 130, output
    assert "Traceback" not in output
    assert not still_run(processes)


def test_all_processes_end_by_themselves_when_the_demo_is_killed(demos: list[Demo]) -> None:
    demo = start_demo(demos, "--seconds", "60", "--no-faults")
    demo.read_until("full load")
    processes = demo.descendants()
    assert len(processes) >= 5
    demo.process.kill()
    assert wait_until(lambda: not still_run(processes), 15), still_run(processes)


@pytest.mark.parametrize("name", ["pigeon", "nccl"])
def test_backend_that_cannot_serve_ends_with_a_clear_message(name: str, demos: list[Demo]) -> None:
    status, output = start_demo(demos, "--backend", name).finish()
    assert status == 2
    assert f"backend '{name}'" in output
    assert "Traceback" not in output
