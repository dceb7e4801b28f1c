"""Threads that take turns: one runs at a time, a seed says which comes next, and time goes on only while all wait.

Programs that block run here as they are: what they wait with (events, conditions, sleep) comes from ``clock.py``.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

WAKE_S = 0.0002
"""Mean time from a wake-up until the thread runs."""


class Killed(BaseException):
    """The process has ended: its threads unwind, and what they ask for on their way has no effect."""


@dataclass(eq=False)
class Process:
    """Some threads that live and die together. ``host``: of those on one host the kernel knows when one has died."""

    name: str
    host: str
    is_alive: bool = True
    is_stopped: bool = False
    died_at: float = float("inf")
    phase: str = "start"
    """What it is at, in a word."""
    on_killed: list[Callable[[], None]] = field(default_factory=list)
    threads: list[Thread] = field(default_factory=list)
    held: list[Callable[[], object]] = field(default_factory=list)
    """What happens to it once it goes on, while it is stopped."""


class Thread:
    """One of a process. It runs only when it is given the turn."""

    def __init__(self, turns: Turns, process: Process, target: Callable[[], None], name: str) -> None:
        self.process, self.name = process, name
        self.turn = threading.Lock()
        """Held while it must not run."""
        self.turn.acquire()
        self.is_over = False
        self.error: BaseException | None = None
        self.number_of_waits = 0
        self.was_woken = False
        self.on_over: list[Callable[[], None]] = []
        self._turns, self._target = turns, target
        self.thread = threading.Thread(target=self._run, name=f"simulated {process.name} {name}", daemon=True)

    def _run(self) -> None:
        self.turn.acquire()
        try:
            if self.process.is_alive:
                self._target()
        except Killed:
            pass
        except BaseException as error:  # it is raised by the main thread
            self.error = error
        self.is_over = True
        self._turns.give_back()


class Turns:
    """The clock, and whose turn it is. Belongs to the thread that made it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.process: Process | None = None
        """The one that acts now."""
        self.thread: Thread | None = None
        """The one that runs now; None while an event is carried out."""
        self.processes: list[Process] = []
        self._events: list[tuple[float, int, Process | None, Callable[[], object]]] = []
        self._number = itertools.count()
        self._back = threading.Lock()
        """Held while a thread has the turn, or none has ended its one."""
        self._back.acquire()

    # ---- events

    def at(self, when: float, call: Callable[[], object], process: Process | None = None) -> None:
        """Call back at that time, unless ``process`` has died by then; if it is stopped, when it goes on."""
        heapq.heappush(self._events, (when, next(self._number), process, call))

    def after(self, delay_s: float, call: Callable[[], object], process: Process | None = None) -> None:
        self.at(self.now + delay_s, call, process)

    def some(self, mean_s: float) -> float:
        """Return a time of about so long."""
        return self.random.expovariate(1.0 / mean_s)

    def advance(self) -> bool:
        """Let what comes next happen. False: nothing is to come."""
        if not self._events:
            return False
        when, _, process, call = heapq.heappop(self._events)
        if process is not None and not process.is_alive:
            return True
        if process is not None and process.is_stopped:
            process.held.append(call)
            return True
        self.now = max(self.now, when)
        self.process = process
        call()
        self.process = None
        return True

    def run_until(self, when: float) -> None:
        while self._events and self._events[0][0] <= when:
            self.advance()
        self.now = max(self.now, when)

    # ---- processes

    def start(self, name: str, host: str, target: Callable[[Process], None]) -> Process:
        process = Process(name, host)
        self.processes.append(process)
        self.spawn(process, lambda: target(process), "main")
        return process

    def kill(self, process: Process) -> None:
        """End the process at any point. Its threads have ended when this returns. Only an event may call it."""
        assert self.thread is None, "a thread may only have an event kill"
        if not process.is_alive:
            return
        process.is_alive, process.is_stopped, process.died_at = False, False, self.now
        process.held.clear()
        for each in list(process.threads):
            if not each.is_over:
                self._give(each)
        for call in process.on_killed:
            call()

    def stop(self, process: Process) -> None:
        process.is_stopped = True

    def go_on(self, process: Process) -> None:
        """What has come meanwhile is taken first, in its order."""
        process.is_stopped = False
        held, process.held = process.held, []
        for call in held:
            self.at(self.now, call, process)

    def spawn(self, process: Process, target: Callable[[], None], name: str) -> Thread:
        thread = Thread(self, process, target, name)
        process.threads.append(thread)
        thread.thread.start()
        self.after(self.some(WAKE_S), lambda: self._give(thread), process)
        return thread

    # ---- for threads of processes

    def check_alive(self) -> None:
        """Raise Killed in a process that has ended: nothing that it asks for has an effect."""
        if self.thread is not None and not self.thread.process.is_alive:
            raise Killed

    def block(self, timeout_s: float | None) -> bool:
        """Wait until this thread is woken. False: the time is over before."""
        thread = self.thread
        assert thread is not None, "an event waits for something"
        self.check_alive()
        number = thread.number_of_waits
        if timeout_s is not None:
            self.after(timeout_s, lambda: self._wake(thread, number, was_woken=False), thread.process)
        self.thread = self.process = None
        self._back.release()
        thread.turn.acquire()
        thread.number_of_waits += 1
        self.check_alive()
        return thread.was_woken

    def waker(self) -> Callable[[], None]:
        """Return a call that wakes the present thread from its next wait. Any thread may make it."""
        thread = self.thread
        assert thread is not None, "an event waits for something"
        number = thread.number_of_waits

        def wake() -> None:
            self.after(self.some(WAKE_S), lambda: self._wake(thread, number, was_woken=True), thread.process)

        return wake

    def pause(self, mean_s: float) -> None:
        """Let about so much time pass: others act meanwhile, and this process may be killed."""
        self.block(self.some(mean_s))

    def give_back(self) -> None:
        """A thread is over."""
        self.thread = None
        self._back.release()

    def _wake(self, thread: Thread, number: int, *, was_woken: bool) -> None:
        if thread.number_of_waits == number and not thread.is_over:
            thread.was_woken = was_woken
            self._give(thread)

    def _give(self, thread: Thread) -> None:
        """Let it run until it waits again."""
        before = self.thread, self.process
        self.thread, self.process = thread, thread.process
        thread.turn.release()
        self._back.acquire()
        self.thread, self.process = before
        if thread.is_over and thread in thread.process.threads:
            thread.thread.join()
            thread.process.threads.remove(thread)
            for call in thread.on_over:
                call()
            if thread.error is not None:
                raise thread.error
