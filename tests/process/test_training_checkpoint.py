"""Checkpoints of a training that goes on, written by another process, which dies, is stopped or finds the disk full."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from multiworld.testing import scaled
from multiworld.training.checkpoint.config import Checkpoint
from multiworld.training.checkpoint.finding import newest
from multiworld.training.checkpoint.loading import load
from multiworld.training.checkpoint.names import UNFINISHED
from multiworld.training.checkpoint.saver import CheckpointOutcome, CheckpointSaver
from tests.checkpoints import Trained, only, steps_in
from tests.process import checkpoint_program
from tests.process.checkpoint_program import filled_state

pytestmark = pytest.mark.process

END_S = 30.0


class Saving:
    """A saver, and what it told."""

    def __init__(self, directory: Path, member: str = "a", **settings: float) -> None:
        self.outcomes: list[CheckpointOutcome] = []
        config = Checkpoint(directory, timeout_s=scaled(END_S), **settings)  # type: ignore[arg-type]
        self.saver = CheckpointSaver(config, job="job", member=member, on_outcome=self.outcomes.append)

    def outcome(self) -> CheckpointOutcome:
        """Wait for the next one."""
        self.saver.poll(scaled(END_S))
        return self.outcomes.pop()

    @property
    def writer_pid(self) -> int:
        pid = self.saver.writer_pid
        assert pid is not None
        return pid


@contextlib.contextmanager
def saving(directory: Path, member: str = "a", **settings: float) -> Iterator[Saving]:
    each = Saving(directory, member, **settings)
    try:
        yield each
    finally:
        each.saver.close(0.0)


def save(saving: Saving, trained: Trained, members: tuple[str, ...] = ("a",), generation: int = 1) -> None:
    saving.saver.save(trained.state.capture, step=trained.state.step, generation=generation, members=members)


def test_a_checkpoint_has_the_values_of_its_step_though_they_change_before_it_is_written(tmp_path: Path) -> None:
    trained = Trained().train(2)
    expected = Trained().train(2)
    with saving(tmp_path) as one:
        one.saver.prepare(["a"])
        os.kill(one.writer_pid, signal.SIGSTOP)
        save(one, trained)
        trained.train(3)
        save(one, trained)
        assert re.search("of step 2 is still being written, .*; its process has just", one.outcomes.pop().error)
        os.kill(one.writer_pid, signal.SIGCONT)
        outcome = one.outcome()
        os.kill(one.writer_pid, signal.SIGSTOP)
        save(one, trained)
        save(one, trained)
        assert re.search("of step 5 is still being written, .*; raise every_steps", one.outcomes.pop().error)
        os.kill(one.writer_pid, signal.SIGKILL)
    assert (outcome.step, outcome.error, outcome.path) == (2, "", str(tmp_path / "step-00000002"))
    back = Trained(seed=1)
    load(only(tmp_path), back.state)
    assert back == expected


def test_a_full_disk_and_a_killed_writer_cost_one_checkpoint_each_and_nothing_else(tmp_path: Path) -> None:
    trained = Trained()
    with saving(tmp_path) as one:
        save(one, trained.train(1))
        assert one.outcome().error == ""
        _, hard = resource.prlimit(one.writer_pid, resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
        save(one, trained.train(1))
        assert "File too large" in one.outcome().error
        assert os.listdir(tmp_path) == ["step-00000001"]
        resource.prlimit(one.writer_pid, resource.RLIMIT_FSIZE, (hard, hard))
        save(one, trained.train(1))
        assert one.outcome().error == ""
        os.kill(one.writer_pid, signal.SIGSTOP)
        save(one, trained.train(1))
        os.kill(one.writer_pid, signal.SIGKILL)
        assert "was killed by SIGKILL" in one.outcome().error
        save(one, trained.train(1))
        assert one.outcome().error == ""
    assert steps_in(tmp_path) == [5, 3, 1]


def test_two_writers_share_a_checkpoint_and_the_loss_of_one_ends_only_that_one(tmp_path: Path) -> None:
    trained = Trained().train(1)
    with saving(tmp_path, "a", writers=2) as first, saving(tmp_path, "b", writers=2) as second:
        for each in (first, second):
            each.saver.on_members(["a", "b", "c"])
            save(each, trained, ("a", "b", "c"))
        assert first.outcome().path == str(tmp_path / "step-00000001")
        second.saver.poll(scaled(END_S))
        assert second.outcomes == []  # it is the first writer that knows
        save(first, trained.train(1), ("a", "b", "c"))
        first.saver.on_members(["a", "c"])
        assert "writer 1 was lost" in first.outcome().error
        for each in (first, second):
            save(each, trained, ("a", "b", "c"), generation=2)
        assert first.outcome().error == ""
    back = Trained(seed=1)
    found = newest(tmp_path)
    assert found is not None
    load(found, back.state)
    assert back == trained


def test_kill_9_in_the_middle_of_a_save_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    with program(tmp_path) as lines:
        writer = int(next(lines).removeprefix("pid "))
        said = [next(lines), next(lines)]
        wait_for_half_a_checkpoint(tmp_path)
        os.kill(writer, signal.SIGKILL)
        lines.process.kill()
        said += lines
    assert all(line.startswith("whole ") for line in said)
    found = newest(tmp_path)
    assert found is not None
    assert found.step - int(said[-1].removeprefix("whole ")) in (0, 1)  # it may be whole before that is said
    part, state = filled_state()
    load(found, state)
    assert part.values() == {float(found.step)}


class Lines:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def __iter__(self) -> Lines:
        return self

    def __next__(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise StopIteration
        return line.strip()


@contextlib.contextmanager
def program(directory: Path) -> Iterator[Lines]:
    command = [sys.executable, "-m", checkpoint_program.__name__, str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Lines(process)
        finally:
            process.kill()


def wait_for_half_a_checkpoint(directory: Path) -> None:
    """Return when a file of an unfinished checkpoint has a part of its bytes."""
    until = time.monotonic() + scaled(END_S)
    while time.monotonic() < until:
        for file in directory.glob(f"{UNFINISHED}*/__0_0.distcp"):
            with contextlib.suppress(FileNotFoundError):
                if file.stat().st_size > 0:
                    return
    pytest.fail("no checkpoint was begun")


def test_fifty_checkpoints_leave_no_descriptor_thread_or_memory_behind(tmp_path: Path) -> None:
    trained = Trained(width=256).train(1)
    with saving(tmp_path, sync=False) as one:

        def counts() -> tuple[int, int, int]:
            own, its = "/proc/self", f"/proc/{one.writer_pid}"
            return len(os.listdir(f"{own}/fd")), len(os.listdir(f"{own}/task")), len(os.listdir(f"{its}/fd"))

        for number in range(60):
            save(one, trained.train(1))
            assert one.outcome().error == ""
            if number == 9:
                before, memory = counts(), resident_bytes(one.writer_pid)
        assert counts() == before
        assert resident_bytes(one.writer_pid) < memory * 1.05
        pid = one.writer_pid
    assert not os.path.exists(f"/proc/{pid}")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
