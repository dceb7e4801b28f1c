"""A member's time in a step, by part."""

from __future__ import annotations

import pytest

from multiworld.training.health.timing import (
    BACKWARD,
    CPU_WAIT,
    DATA,
    FORWARD,
    IDLE,
    OPTIMIZER,
    WAIT,
    CudaStepTimer,
    StepTimer,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Mark:
    """An event of a device that runs some time behind its thread."""

    def __init__(self, device: Device) -> None:
        self._device, self.at = device, 0.0

    def record(self) -> None:
        self.at = self._device.enqueued

    def query(self) -> bool:
        return self.at <= self._device.done

    def elapsed_time(self, end: Mark) -> float:
        return 1000 * (end.at - self.at)


class Device:
    """``enqueued``: what the thread has given it, in seconds of work; ``done``: how far it is."""

    def __init__(self) -> None:
        self.enqueued = self.done = 0.0


def test_time_belongs_to_the_part_that_was_entered_last() -> None:
    clock = Clock()
    timer = StepTimer(clock)
    for part, seconds in ((DATA, 1.0), (FORWARD, 2.0), (BACKWARD, 3.0), (DATA, 0.5), (FORWARD, 2.5), (IDLE, 7.0)):
        timer.enter(part)
        clock.now += seconds
    assert timer.taken() == pytest.approx({DATA: 1.5, FORWARD: 4.5, BACKWARD: 3.0})
    assert timer.taken() == {}


def test_a_part_that_goes_on_is_split_between_two_steps() -> None:
    clock = Clock()
    timer = StepTimer(clock)
    timer.enter(OPTIMIZER)
    clock.now += 1
    assert timer.taken() == {OPTIMIZER: 1.0}
    clock.now += 2
    assert timer.taken() == {OPTIMIZER: 2.0}


def test_a_part_within_another_does_not_count_twice() -> None:
    clock = Clock()
    timer = StepTimer(clock)
    timer.enter(BACKWARD)
    clock.now += 1
    with timer.within(WAIT):
        clock.now += 5
    clock.now += 1
    assert timer.taken() == {BACKWARD: 2.0, WAIT: 5.0}


class Queue:
    """A thread that waits for a processor, as far as it is told."""

    def __init__(self) -> None:
        self.waited_s = 7.0

    def __call__(self) -> float:
        return self.waited_s

    def close(self) -> None:
        self.waited_s = 0.0


def test_waiting_for_a_processor_is_no_work_of_the_part() -> None:
    clock, queue = Clock(), Queue()
    timer = StepTimer(clock, queue)
    for part, works_s, waits_s in ((DATA, 1.0, 0.0), (BACKWARD, 2.0, 5.0), (WAIT, 1.0, 3.0), (DATA, 1.0, 0.5)):
        timer.enter(part)
        clock.now += works_s + waits_s
        queue.waited_s += waits_s
    assert timer.taken() == pytest.approx({DATA: 2.0, BACKWARD: 2.0, WAIT: 4.0, CPU_WAIT: 5.5})


def test_a_part_is_never_shorter_than_nothing() -> None:
    clock, queue = Clock(), Queue()
    timer = StepTimer(clock, queue)
    timer.enter(FORWARD)
    clock.now += 1.0
    queue.waited_s += 1.5  # it waited between the two looks, too
    assert timer.taken() == {FORWARD: 0.0, CPU_WAIT: 1.0}


def test_on_a_gpu_the_parts_are_timed_on_the_device_and_data_on_the_thread() -> None:
    clock, device = Clock(), Device()
    timer = CudaStepTimer(clock, lambda: Mark(device))  # type: ignore[arg-type, return-value]
    for part, on_thread, on_device in ((DATA, 0.25, 0.0), (FORWARD, 0.125, 2.0), (BACKWARD, 0.125, 4.0)):
        timer.enter(part)
        clock.now += on_thread
        device.enqueued += on_device
    timer.enter(IDLE)
    assert timer.taken() == {}  # the device is not done, and nobody waits for it
    device.done = device.enqueued
    assert timer.taken() == pytest.approx({DATA: 0.25, FORWARD: 2.0, BACKWARD: 4.0})
