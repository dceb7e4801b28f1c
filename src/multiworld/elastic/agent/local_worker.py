"""One worker as its agent holds it: from the order to start it, through its process, to what is known of its end."""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from ...process.child import WorkerProcess
from ...process.memory_kills import MemoryKills
from ...process.orphan_guard import OrphanGuard
from ...process.spawn.fork_server import ForkServer
from ...process.spawn.forking import WAITED_FOR
from ...process.spawn.keeper import ForkServerKeeper
from ...process.spawn.launch_order import Launch
from ...wire.backoff import BackOff
from ...wire.descriptors import is_scarcity
from ...wire.progress.operation import Operation
from ...wire.progress.thread import ProgressThread, Timer
from ...wire.progress.waiting import run_in_thread
from ...wire.rate_limited_log import RateLimitedLog
from ...world.launcher.launched import RUN_FOLDER_VARIABLE
from ...world.liveness import Vital
from ...world.processes.procfs import is_uninterruptible, process_start_time
from ...world.processes.vitals import observe_process
from ..job.actions import OUR_SIGNALS
from ..job.assignment import Assignment
from ..job.failure import FailureCause, WorkerFailure
from ..job.options import JobOptions
from ..logs.pump import LogPump, WorkerStreams
from .clock import now_us
from .environment import local_arguments, worker_variables
from .exit_cause import Remains, dump_stacks, examine

logger = logging.getLogger(__name__)

DRAIN_S = 0.5  # a grandchild may hold the pipes of a worker that has ended
STACKS_S = 5.0  # for a worker that hangs to write its stacks; one that sleeps in the kernel never does
FIRST_LOOK_S, LAST_LOOK_S = 0.01, 0.1  # whether it has written them
STOPPED_MARGIN_S = 0.25  # others wait for a lease and more before they take this host's places
UNKILLABLE_S = 2.0  # one that leaves the kernel at a signal has ended by then
START_FAILED = 127  # as a shell says it
FIRST_RETRY_S, LAST_RETRY_S = 0.1, 5.0  # of a start for which there are no descriptors, memory or processes left


def start_fork_server(options: JobOptions, *, in_place: bool) -> ForkServer:
    """Start what forks the workers, and kills them should this agent be stopped so long that others replace them."""
    return ForkServer.start(
        preload=options.preload,
        warm=options.warm,
        spares=options.spares,
        in_place=in_place,
        stopped_limit_s=None if options.is_alone else options.lease_s + STOPPED_MARGIN_S,
    )


class LocalWorker:
    """Progress thread only. ``on_exit`` is called once, when the worker has ended and its output was read."""

    def __init__(
        self,
        loop: ProgressThread,
        worker_id: str,
        assignment: Assignment,
        *,
        on_exit: Callable[[LocalWorker], None],
        agent_was_away: Callable[[], float],
    ) -> None:
        """``agent_was_away``: for how long this agent did not run just now, for which the fork server ends workers."""
        self._loop, self._agent_was_away = loop, agent_was_away
        self.id, self.assignment = worker_id, assignment
        self.began_at = time.monotonic()
        self.process: WorkerProcess | None = None
        self.streams: WorkerStreams | None = None
        self.returncode: int | None = None
        self.failure: WorkerFailure | None = None
        self.uses_multiworld = False
        self.worlds: set[str] = set()
        self.progressed_at: float | None = None
        self.given_up = False
        self.ordered = False
        """Whether it was told to end."""
        self.is_quiet = False
        """Whether nobody asks then how it ended."""
        self.verdict: tuple[FailureCause, str] | None = None
        """Why we ended it, if not because the coordinator said so, and what we saw."""
        self._on_exit = on_exit
        self._start_time = 0
        self._is_over = False
        self._stopped_since: float | None = None
        self._asleep_since: float | None = None
        self._stop: tuple[int, float] | None = None  # ordered before there was a process
        self._retry: Timer | None = None
        self._give_up: Callable[[int], None] = self._end
        self._examine: Callable[[LocalWorker, int], WorkerFailure | None] = lambda held, returncode: None

    def began(
        self, process: WorkerProcess, streams: WorkerStreams, examine: Callable[[LocalWorker, int], WorkerFailure]
    ) -> None:
        """It has a process now. ``examine`` finds out about its end."""
        self.process, self.streams, self._examine = process, streams, examine
        self._start_time = process_start_time(process.pid) or 0
        if self._stop is not None:
            process.stop(*self._stop)

    def did_not_begin(self, failure: WorkerFailure, returncode: int = START_FAILED) -> None:
        """It could not be started, or was told to end before that."""
        self.failure = failure
        self._end(returncode)

    def waits(self, retry: Timer, give_up: Callable[[int], None]) -> None:
        """It cannot be started now. ``give_up(signum)`` is called if it is to end before it is tried again."""
        self._retry, self._give_up = retry, give_up
        if self._stop is not None:
            self._stop_waiting(self._stop[0])

    def assign(self, assignment: Assignment) -> None:
        """The same process has another place from now on."""
        self.assignment = assignment
        if self.streams is not None:
            self.streams.reassigned(assignment)

    @property
    def told_failure(self) -> WorkerFailure | None:
        """What the coordinator hears of how it failed: nothing where it obeyed and nobody asks."""
        return None if self.is_quiet and self.returncode in OUR_SIGNALS else self.failure

    def stop(self, signum: int, grace_s: float) -> None:
        self.ordered = True
        if self.process is not None:
            self.process.stop(signum, grace_s)
            if self._stopped_since is not None:
                self.process.kill()  # it could not even take the signal
        else:
            self._stop = (signum, grace_s)
            self._stop_waiting(signum)

    def kill(self, why: str) -> None:
        if self.process is not None and self.process.returncode is None:
            logger.info("worker %s (pid %d) is killed: %s", self.id, self.process.pid, why)
            self.process.kill()
        elif self.process is None:
            self._stop = (signal.SIGKILL, 0.0)
            self._stop_waiting(signal.SIGKILL)

    def is_tried(self) -> None:
        """It is being started, for the first time or again."""
        self._retry = None

    def _stop_waiting(self, signum: int) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
            self._loop.call_soon(partial(self._give_up, signum))

    def look(
        self, now: float, *, lease_s: float, progress_s: float | None, uninterruptible_s: float | None = None
    ) -> None:
        """End it if it has been stopped for the lease, or has slept in the kernel or made no progress for too long."""
        if self.process is None or self.process.returncode is not None or self.verdict is not None:
            return
        if observe_process(self.process.pid, self._start_time) is Vital.STOPPED:
            self._stopped_since = now if self._stopped_since is None else self._stopped_since
        else:
            self._stopped_since = None
        if uninterruptible_s is None or not is_uninterruptible(self.process.pid, self._start_time):
            self._asleep_since = None
        elif self._asleep_since is None:
            self._asleep_since = now
        elif now - self._asleep_since >= uninterruptible_s:
            self._condemn(FailureCause.UNINTERRUPTIBLE, f"for {now - self._asleep_since:.1f} s")
            return
        if self._stopped_since is not None and now - self._stopped_since >= lease_s:
            self._condemn(FailureCause.STOPPED, f"for {now - self._stopped_since:.1f} s")
        elif progress_s is not None and self.progressed_at is not None and now - self.progressed_at >= progress_s:
            self._condemn(FailureCause.HUNG, f"for {now - self.progressed_at:.1f} s")

    def forgive(self, away_s: float, now: float) -> None:
        """The agent was away for that long: what the worker said meanwhile is not read yet, and nobody saw it run."""
        if self.progressed_at is not None:
            self.progressed_at = min(now, self.progressed_at + away_s)
        if self._stopped_since is not None:
            self._stopped_since = min(now, self._stopped_since + away_s)
        if self._asleep_since is not None:
            self._asleep_since = min(now, self._asleep_since + away_s)

    def runs(self, pid: int) -> bool:
        """Whether that is its process, or one that this has started."""
        if self.process is None or self.process.returncode is not None:
            return False
        try:
            return os.getsid(pid) == self.process.pid
        except ProcessLookupError:
            return False

    def overran(self, clause: str, signum: int, grace_s: float) -> None:
        """It asked to be ended by this signal if it took so long. Another than SIGKILL has its grace, like a stop."""
        if self.process is None or self.process.returncode is not None or self.verdict is not None:
            return
        if signum == signal.SIGKILL:
            self._condemn(FailureCause.OVERRUN, clause)
        else:
            self.verdict = (FailureCause.OVERRUN, clause)
            self.process.stop(signum, grace_s)

    def _abandon(self) -> None:
        """Take it for ended if it is not: the kernel keeps it, and ends it when it lets it go."""
        if self.process is not None and self.process.returncode is None:
            logger.error("worker %s (pid %d) cannot be killed: it is left behind", self.id, self.process.pid)
            self._read_rest(-signal.SIGKILL)

    def exited(self, returncode: int) -> None:
        """Its process has ended: read the rest of its output, then say so."""
        if self._is_over:  # it had been left behind
            return
        self._read_rest(returncode)

    def _read_rest(self, returncode: int) -> None:
        assert self.streams is not None
        self._is_over = True
        away_s = self._agent_was_away()
        if away_s and returncode == -signal.SIGKILL and self.verdict is None:
            self.verdict = (FailureCause.AGENT_STOPPED, f"for {away_s:.1f} s")
        self.streams.close_after(DRAIN_S)
        self.streams.drained.add_callback(partial(self._drained, returncode))

    def _drained(self, returncode: int, _: Operation[None]) -> None:
        self._loop.call_soon(partial(self._finish, returncode))

    def _finish(self, returncode: int) -> None:
        if returncode:
            self.failure = self._examine(self, returncode)
        self._end(returncode)

    def _end(self, returncode: int) -> None:
        self.returncode = returncode
        self._on_exit(self)

    def _condemn(self, cause: FailureCause, clause: str) -> None:
        assert self.process is not None
        self.verdict = (cause, clause)
        why = f"{cause.value} {clause}"
        if cause is FailureCause.STOPPED:
            self.kill(why)
            return
        if cause is FailureCause.UNINTERRUPTIBLE:
            self.kill(why)
            self._loop.call_later(UNKILLABLE_S, self._abandon)
            return
        looking = run_in_thread(partial(dump_stacks, self.process.pid), "multiworld-stacks")
        looking.add_callback(lambda _: self._loop.call_soon(partial(self._looked, looking, why)))

    def _looked(self, looking: Operation[bytes | None], why: str) -> None:
        """Put the stacks of a worker that hangs into its log, from outside or by its own hand, then kill it."""
        assert self.process is not None
        stacks = looking.result() if looking.error is None else None
        if stacks and self.streams is not None:
            self.streams.note(stacks)
        elif self.process.dump_stacks():
            until = time.monotonic() + STACKS_S
            self._kill_once_written(why, until, BackOff(FIRST_LOOK_S, LAST_LOOK_S), was_dumping=True)
            return
        self.kill(why)

    def _kill_once_written(self, why: str, until: float, looks: BackOff, *, was_dumping: bool) -> None:
        """Seen done once is not enough: between taking a signal and blocking it, a thread seems to have handled it."""
        assert self.process is not None
        is_dumping = self.process.is_dumping
        if (is_dumping or was_dumping) and time.monotonic() < until:
            again = partial(self._kill_once_written, why, until, looks, was_dumping=is_dumping)
            self._loop.call_later(looks.next_s(), again)
        else:
            self.kill(why)


class Starter:
    """Starts the workers of one host, through the fork server."""

    def __init__(
        self,
        loop: ProgressThread,
        options: JobOptions,
        fork_server: ForkServer,
        pump: LogPump,
        agent_address: str,
        inherited: Mapping[str, str],
    ) -> None:
        self._loop, self._options, self._pump = loop, options, pump
        self._agent_address, self._inherited = agent_address, inherited
        self._cwd = os.getcwd()
        self._kills = MemoryKills()
        self._hostname = options.host_name or socket.gethostname()
        self._processes: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()
        self._say_scarce = RateLimitedLog(logger.warning)
        self._guard = OrphanGuard(loop)
        self._guard.begin()
        self._servers = ForkServerKeeper(
            loop,
            fork_server,
            partial(start_fork_server, options, in_place=False),
            running=self._running,
            on_forked=self._guard.watch,
        )

    def start(self, held: LocalWorker) -> None:
        """Give it a process, or an end.

        It is no failure of the worker that there are no descriptors, memory or processes left: then it is tried again.
        """
        self._try(held, BackOff(FIRST_RETRY_S, LAST_RETRY_S))

    def _try(self, held: LocalWorker, retries: BackOff) -> None:
        held.is_tried()
        assignment, streams = held.assignment, None
        try:
            streams = self._pump.open(assignment)
            env = worker_variables(
                self._options,
                assignment,
                agent=self._agent_address,
                worker_id=held.id,
                error_file=streams.error_file,
                inherited=self._inherited,
            )
            env.update(streams.variables)
            env.pop(RUN_FOLDER_VARIABLE, None)  # of a job that this one was started in
            if self._options.logs.log_dir is not None and self._pump.run_dir is not None:
                env[RUN_FOLDER_VARIABLE] = os.path.abspath(self._pump.run_dir)
            launch = self._launch(assignment, env)
        except Exception as error:  # whatever it is: a worker that is not started must not be waited for
            logger.debug("rank %d cannot be started", assignment.rank, exc_info=True)
            self._loop.call_soon(partial(self._not_started, held, streams, error, retries))
            return
        stdout_fd, stderr_fd = streams.stdout_fd, streams.stderr_fd
        self._servers.spawn(
            lambda server, told: server.spawn(launch, stdout_fd, stderr_fd, told),
            partial(self._started, held, streams, retries),
        )

    def look(self, now: float) -> None:
        """See whether what starts workers can do so."""
        self._servers.look(now, self._options.lease_s)

    def _launch(self, assignment: Assignment, env: Mapping[str, str]) -> Launch:
        return Launch(
            entrypoint=self._options.entrypoint,
            arguments=local_arguments(self._options.entrypoint, assignment.local_rank),
            env=env,
            cwd=self._cwd,
            warm=self._options.warm,
            reads_stdin=assignment.rank == 0 or not self._options.only_rank_0_reads,
            numa=None if self._options.numa_binding is None else (self._options.numa_binding, assignment.local_rank),
        )

    def close(self) -> None:
        self._servers.close()
        self._guard.close()

    def _running(self) -> list[int]:
        return [each.pid for each in self._processes if each.returncode is None]

    def _started(self, held: LocalWorker, streams: WorkerStreams, retries: BackOff, answer: int | OSError) -> None:
        streams.started()
        if isinstance(answer, int):
            try:
                process = WorkerProcess(self._loop, answer, held.exited)
            except OSError as error:  # no descriptor to watch it with
                os.killpg(answer, signal.SIGKILL)
                WAITED_FOR.discard(answer)
                answer = error
            else:
                self._processes.add(process)
                held.began(process, streams, partial(self._examine, streams))
                return
        self._not_started(held, streams, answer, retries)

    def _not_started(
        self, held: LocalWorker, streams: WorkerStreams | None, error: Exception, retries: BackOff
    ) -> None:
        if streams is not None:
            streams.close_after(0)
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
        if is_scarcity(error):
            if streams is not None:
                self._pump.take_back(held.assignment)
            self._retry_later(held, reason, retries)
        else:
            self._failed(held, reason)

    def _retry_later(self, held: LocalWorker, reason: str, retries: BackOff) -> None:
        rank, retry_s = held.assignment.rank, retries.next_s()
        self._say_scarce("rank %d cannot be started now, and is tried again in %.1f s: %s", rank, retry_s, reason)
        retry = self._loop.call_later(retry_s, partial(self._try, held, retries))
        held.waits(retry, partial(self._given_up, held))

    def _given_up(self, held: LocalWorker, signum: int) -> None:
        """It was to end before it could be started."""
        remains = self._remains(held.assignment, pid=0, returncode=-signum)
        failure = examine(remains, kills=self._kills, message="it was to end before it could be started")
        held.did_not_begin(failure, -signum)

    def _failed(self, held: LocalWorker, reason: str) -> None:
        logger.error("rank %d cannot be started: %s", held.assignment.rank, reason)
        remains = self._remains(held.assignment, pid=0, returncode=START_FAILED)
        failure = examine(remains, kills=self._kills, cause=FailureCause.START_FAILED, message=reason)
        held.did_not_begin(failure)

    def _examine(self, streams: WorkerStreams, held: LocalWorker, returncode: int) -> WorkerFailure:
        assert held.process is not None
        remains = replace(
            self._remains(held.assignment, pid=held.process.pid, returncode=returncode),
            error_file=streams.error_file,
            tail=streams.tail(),
        )
        cause, message = held.verdict if held.verdict is not None else (None, "")
        try:
            return examine(remains, kills=self._kills, cause=cause, message=message)
        except Exception:  # its end must be told, whatever it left behind
            logger.exception("what worker %s left behind cannot be read", held.id)
            bare = replace(remains, error_file="", tail=())
            return examine(bare, kills=self._kills, cause=cause, message=message)

    def _remains(self, assignment: Assignment, *, pid: int, returncode: int) -> Remains:
        return Remains(
            assignment=assignment,
            role=self._options.role,
            hostname=self._hostname,
            pid=pid,
            returncode=returncode,
            at_us=now_us(),
        )
