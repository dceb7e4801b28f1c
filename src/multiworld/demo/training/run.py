"""Run the demo of training: the same training twice under the launcher, the second time with kills."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .options import TrainingDemoOptions
from .plan import PlannedKill, plan_kills
from .records import Begun, Done, decode
from .report import Kill, Report, Run
from .worker import GLOBAL_BATCH

WORKER = "multiworld.demo.training.worker"
END_S = 10.0
Tell = Callable[[str], None]


async def run(options: TrainingDemoOptions, tell: Tell) -> Report:
    """Return what came of it. What is cancelled leaves no process behind."""
    tell(f"one replica, undisturbed: {options.steps} steps")
    alone = await _Training(options, 1, [], lambda text: None).run()
    tell(f"took {alone.took_s:.1f} s; loss {_first_and_last(alone.losses())}")
    plan = plan_kills(options)
    tell(f"{options.replicas} replicas, with {len(plan)} kills: the same {options.steps} steps")
    disturbed = Run()
    if not alone.error:
        disturbed = await _Training(options, options.replicas, plan, tell).run()
        tell(f"took {disturbed.took_s:.1f} s; loss {_first_and_last(disturbed.losses())}")
    return Report(
        alone=alone,
        disturbed=disturbed,
        steps=options.steps,
        replicas=options.replicas,
        global_batch=GLOBAL_BATCH,
        num_kills=len(plan),
    )


class _Training:
    """One launch, what its replicas say, and the kills among them."""

    def __init__(self, options: TrainingDemoOptions, replicas: int, plan: Sequence[PlannedKill], tell: Tell) -> None:
        self._options, self._replicas, self._tell = options, replicas, tell
        self._to_come = list(plan)
        self._pids: dict[int, int] = {}
        self._told, self._heard_at = -1, time.monotonic()
        self._began = time.monotonic()
        self._unfinished = b""
        self.run_of = Run()

    async def run(self) -> Run:
        loop = asyncio.get_running_loop()
        with tempfile.TemporaryDirectory(prefix="multiworld-demo-") as folder:
            path, log = Path(folder) / "records", Path(folder) / "log"
            os.mkfifo(path)
            pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # for writing, too: it never comes to its end
            try:
                loop.add_reader(pipe, self._read, pipe)
                await self._launch(path, log)
                self._read(pipe)
            finally:
                loop.remove_reader(pipe)
                os.close(pipe)
        self.run_of.took_s = time.monotonic() - self._began
        return self.run_of

    async def _launch(self, pipe: Path, log: Path) -> None:
        options = self._options
        launcher = [sys.executable, "-m", "multiworld.run", "--warm", f"--nproc-per-node={self._replicas}"]
        restarts = f"--max-restarts={len(self._to_come)}"
        program = ["-m", WORKER, str(pipe), str(options.steps), str(options.seed)]
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(*launcher, restarts, *program, stdout=file, stderr=file)
            try:
                status = await process.wait()
            finally:
                if process.returncode is None:
                    process.terminate()  # the launcher ends its workers
                    try:
                        await asyncio.wait_for(process.wait(), END_S)
                    except (asyncio.TimeoutError, TimeoutError):
                        process.kill()
                        await process.wait()
        if status:
            self.run_of.error = f"the launcher ended with status {status}:\n{_end_of(log)}"

    def _read(self, pipe: int) -> None:
        try:
            data = os.read(pipe, 1 << 16)
        except BlockingIOError:
            return
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        for line in lines:
            record = decode(line)
            self.run_of.records.append(record)
            if isinstance(record, Begun):
                if record.rank in self._pids or record.step:
                    self._say(f"step {record.step:4}: rank {record.rank} is back, as process {record.pid}")
                self._pids[record.rank] = record.pid
            elif isinstance(record, Done):
                self._hear(record)

    def _hear(self, done: Done) -> None:
        if done.step <= self._told:
            return
        self._told = done.step
        if done.step % (self._options.steps // 10) == 0:
            self._say(f"step {done.step:4}: loss {done.loss:.4f}, {done.replicas} replica{'s' * (done.replicas != 1)}")
        step_s, self._heard_at = done.at - self._heard_at, done.at
        if self._to_come and done.step >= self._to_come[0].step and len(self._pids) > 1:
            planned = self._to_come.pop(0)
            asyncio.get_running_loop().call_later(planned.moment * step_s, self._kill, planned)

    def _kill(self, planned: PlannedKill) -> None:
        rank = planned.pick(sorted(self._pids))
        pid = self._pids.pop(rank)
        os.kill(pid, signal.SIGKILL)
        self.run_of.kills.append(Kill(rank=rank, pid=pid, at=time.monotonic(), step=self._told))
        self._say(f"step {self._told + 1:4}: kill -9 {pid} (rank {rank})")

    def _say(self, text: str) -> None:
        self._tell(f"{time.monotonic() - self._began:6.2f} s  {text}")


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


def _first_and_last(losses: Sequence[float]) -> str:
    return f"{losses[0]:.4f} → {losses[-1]:.4f}" if losses else "-"
