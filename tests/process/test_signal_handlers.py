"""A signal handler of the user's gives a world up, in the middle of whatever its thread is doing there."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Iterator
from types import FrameType

import pytest
import torch

import multiworld as mw
from multiworld.testing import scaled
from tests.process.one_process import in_thread, worlds

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("no_leaks")]

TRIALS = 15
SEED = 5
NUMEL = 4
ABORT_S = 2.0  # far more than it takes; a deadlock takes for ever


@pytest.fixture
def alarms() -> Iterator[None]:
    """The process's SIGALRM is the test's."""
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def send_for_ever(world: mw.World) -> None:
    tensor = torch.zeros(NUMEL)
    while True:
        world.blocking.send(tensor, 1)


def receive_all(world: mw.World) -> None:
    tensor = torch.empty(NUMEL)
    with contextlib.suppress(mw.WorldBrokenError):
        while True:
            world.blocking.recv(tensor, 0)


@pytest.mark.parametrize("backend", ["tcp", "shm"])
@pytest.mark.usefixtures("alarms")
def test_a_signal_handler_may_abort_a_world_amid_its_operations(backend: str) -> None:
    chance = random.Random(SEED)
    for _ in range(TRIALS):
        with worlds(2, backend) as (mine, theirs):
            receiving = in_thread(receive_all, theirs)
            took_s: list[float] = []

            def abort(number: int, frame: FrameType | None, world: mw.World = mine, took: list[float] = took_s) -> None:
                began = time.monotonic()
                world.abort()
                took.append(time.monotonic() - began)

            signal.signal(signal.SIGALRM, abort)
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0005, 0.005))
            with pytest.raises(mw.WorldClosedError):
                send_for_ever(mine)
            assert took_s[0] < scaled(ABORT_S), f"seed {SEED}"
            receiving.result()
