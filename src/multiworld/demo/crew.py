"""The worker processes of the main job: started warm, given a role, watched, and all gone at the end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections import deque
from collections.abc import Callable

from ..world.procfs import STOPPED, process_start_time, process_state
from .protocol import READY, Notice, Role

__all__ = ["Crew", "Worker", "WorkerFailedError"]

STDERR_LINES = 40


class WorkerFailedError(Exception):
    """A worker process ended although nobody ended it, or did not end. ``stderr`` holds the last lines it wrote."""

    def __init__(self, worker: str, what: str, stderr: str) -> None:
        super().__init__(worker, what, stderr)
        self.worker, self.what, self.stderr = worker, what, stderr

    def __str__(self) -> str:
        return f"worker {self.worker} {self.what}; its stderr:\n{self.stderr or '(empty)'}"


class Worker:
    """One process. ``role`` is empty while it waits; after ``let_go`` its end, however it comes, is no failure."""

    def __init__(self, number: int, process: asyncio.subprocess.Process) -> None:
        self.number, self.process = number, process
        self._start_time = process_start_time(process.pid) or 0
        self.role = ""
        self.ready = asyncio.Event()
        self.stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self.let_go = False

    @property
    def label(self) -> str:
        """What people call it: its role, its number and its process id."""
        return f"{self.role or 'spare'} (#{self.number}, pid {self.process.pid})"

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped, or its container was frozen."""
        return process_state(self.process.pid, self._start_time) == STOPPED

    @property
    def can_play(self) -> bool:
        """Whether it neither has ended nor is stopped."""
        return self.process.returncode is None and not self.is_stopped

    def send_signal(self, number: signal.Signals) -> None:
        """Kill, stop or continue the process, and expect it to end from now on."""
        self.let_go = True
        if self.process.returncode is None:
            self.process.send_signal(number)


class Crew:
    """Starts and watches workers; ``aclose`` leaves none behind.

    ``failed`` gets the first unexpected end as a ``WorkerFailedError``. Set ``closing`` when the pipeline is about to
    end: from then on a worker may end with status 0.
    """

    def __init__(
        self,
        on_notice: Callable[[Worker, Notice], None],
        on_killed: Callable[[Worker, str], bool] = lambda *_: False,
    ) -> None:
        """``on_killed`` is told by which signal a worker was killed that nobody here has killed, and returns whether
        that is no failure.
        """
        self._on_notice, self._on_killed = on_notice, on_killed
        self._workers: list[Worker] = []
        self._watching: list[asyncio.Task[None]] = []
        self._spares: deque[Worker] = deque()
        self.closing = False
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def aclose(self) -> None:
        """Kill whatever still runs."""
        for worker in self._workers:
            worker.send_signal(signal.SIGKILL)  # reaches a stopped process too; those that ended are left alone
        await asyncio.gather(*self._watching)
        if not self.failed.cancel() and not self.failed.cancelled():
            self.failed.exception()  # told or not, it was seen

    async def hire(self) -> Worker:
        """Start a process, which imports torch and then waits for a role."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "multiworld.demo.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in the terminal is for the main job, which then ends the workers
        )
        worker = Worker(len(self._workers), process)
        self._workers.append(worker)
        self._watching.append(asyncio.create_task(self._watch(worker)))
        self._spares.append(worker)
        return worker

    async def take_spare(self) -> Worker:
        """Return a worker that waits for a role, starting one if there is none that could play."""
        while True:
            if not self._spares:
                await self.hire()
            worker = self._spares.popleft()
            await worker.ready.wait()
            if worker.can_play:
                return worker
            worker.let_go = True

    async def assign(self, worker: Worker, role: Role) -> None:
        """Give a worker the only role of its life."""
        worker.role = role.name
        assert worker.process.stdin is not None
        worker.process.stdin.write(role.to_line())
        with contextlib.suppress(ConnectionError):  # it was killed in that moment, which its watcher tells
            await worker.process.stdin.drain()

    async def dismiss(self, *, timeout_s: float) -> None:
        """Let the players end by themselves and the spares go; raise ``WorkerFailedError`` for one that does not."""
        self.closing = True
        for worker in self._workers:
            if worker.let_go or worker.is_stopped:
                worker.send_signal(signal.SIGKILL)
        for worker in self._spares:
            assert worker.process.stdin is not None
            worker.process.stdin.close()
        _, late = await asyncio.wait(self._watching, timeout=timeout_s)
        for worker, watching in zip(self._workers, self._watching, strict=True):
            if watching in late:
                raise WorkerFailedError(worker.label, f"did not end within {timeout_s:g} s", _tail(worker))
        if self.failed.done():
            self.failed.result()

    async def _watch(self, worker: Worker) -> None:
        await asyncio.gather(self._read_notices(worker), self._read_stderr(worker))
        status = await worker.process.wait()
        worker.ready.set()  # for who waits for that: it looks whether it can play
        if worker.let_go or (not status and self.closing):
            return
        if status < 0 and self._on_killed(worker, signal.Signals(-status).name):
            return
        if not self.failed.done():
            self.failed.set_exception(WorkerFailedError(worker.label, _ending(status), _tail(worker)))

    async def _read_notices(self, worker: Worker) -> None:
        assert worker.process.stdout is not None
        async for line in worker.process.stdout:
            notice = Notice.from_line(line)
            if notice.kind == READY:
                worker.ready.set()
            else:
                self._on_notice(worker, notice)

    async def _read_stderr(self, worker: Worker) -> None:
        assert worker.process.stderr is not None
        async for line in worker.process.stderr:
            worker.stderr.append(line.decode(errors="replace").rstrip())


def _tail(worker: Worker) -> str:
    return "\n".join(worker.stderr)


def _ending(status: int) -> str:
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
