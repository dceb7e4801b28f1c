"""Run a job's part on this host, from the command line's options to the end that the whole job has."""

from __future__ import annotations

import errno
import json
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from torch.distributed.elastic import events
from torch.distributed.elastic.events.api import Event, EventSource
from torch.distributed.elastic.multiprocessing.api import SignalException

from ...errors import MultiworldError
from ...observe.sites import is_loopback
from ...process.facts import gpu_models
from ...process.interruption import SIGNALLED, taken
from ...process.logs.carrier import LogCarrier
from ...process.logs.outlet import tell
from ...process.orphans import OrphanReaper, Reaping
from ...process.signal_names import signal_name
from ...process.spawn.fork_server import ForkServer
from ...wire.descriptors import raise_limit
from ...wire.endpoints.token import TOKEN_VARIABLE, warn_of_weakness
from ...wire.progress.thread import ProgressThread
from ...world.liveness import LivenessPolicy
from ...world.processes.procfs import child_pids
from ...world.processes.vitals import host_identity
from ..agent.agent import Agent
from ..agent.environment import device_indices
from ..agent.local_worker import start_fork_server
from ..control.client import read_lines
from ..control.messages import PURPOSE as CONTROL
from ..control.server import ControlServer
from ..hosts.announcement import announcement
from ..job.actions import Outcome
from ..job.agreement import plan_of, what_must_agree
from ..job.failure import in_causal_order
from ..job.failure_report import report
from ..job.layout import AgentInfo
from ..job.options import JobOptions
from ..leadership.coordinator import Coordinator
from ..leadership.leadership import Leadership
from ..leadership.links import AgentLinks
from ..logs.pump import LogPump
from ..page.source import PageSource
from ..rendezvous.base import Address, Rendezvous
from ..rendezvous.registry import find_rendezvous
from ..torch_services.services import TorchServices
from ..torch_services.timers import OverrunTimer
from .child_failed import to_child_failed_error

__all__ = ["JobError", "launch"]

logger = logging.getLogger(__name__)

LOG_S = 5.0  # for a console that is slow to take the last lines
LAST_WORDS_S = 1.0  # for one that has not taken those in that time
STOP_S = 5.0
CARRIED = ("multiworld", "torch")  # the loggers of what runs in an agent


class JobError(MultiworldError):
    """The job could not go on, for a reason that is no worker's."""

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(run_id, reason)
        self.run_id, self.reason = run_id, reason

    def __str__(self) -> str:
        return f"job {self.run_id!r}: {self.reason}"


def launch(options: JobOptions, *, in_place: bool = False) -> dict[int, int]:
    """Run the job until it ends on every host; if it ended well, returns the ranks of this host by local ranks.

    ``in_place``: this process is nothing but the launcher, so workers may be forked from what it has imported.

    Raises ValueError for options that cannot be followed, ChildFailedError for workers that failed, SignalException if
    a signal ended it, and JobError for all else. On the main thread it handles ``options.signals`` meanwhile.
    """
    reaping = Reaping(child_pids()) if in_place else None  # else somebody else may wait for what this process starts
    rendezvous, host = find_rendezvous(options.rdzv_backend)(options)
    options = replace(options, token=_token(options, host))
    on_main_thread = threading.current_thread() is threading.main_thread()
    signals = _Signals()
    with taken(options.signals if on_main_thread else (), signals.take):  # before there is anything that would be left
        try:
            server = start_fork_server(options, in_place=in_place)  # before any thread
        except OSError as error:
            reason = f"the process that starts its workers could not be started: {error}"
            raise JobError(options.run_id, reason) from error
        if in_place:
            raise_limit()  # ours, not that of workers
        with _logs_carried():
            try:
                server.prepare(options.num_workers)
                run = _Run(options, rendezvous, host, server, reaping)
            except BaseException:
                server.close()
                raise
            signals.tell(run.signalled)
            outcome = run.wait()
            run.close(outcome)
    try:
        _conclude(options, outcome, run.run_dir)
    finally:
        run.discard_empty_logs()
    return run.ranks


class _Run:
    """The parts of one agent, put together."""

    def __init__(
        self, options: JobOptions, rendezvous: Rendezvous, host: str, server: ForkServer, reaping: Reaping | None
    ) -> None:
        self._options, self._rendezvous = options, rendezvous
        self._over = threading.Event()
        self._outcome: Outcome | None = None
        self._num_signals = 0
        self._page: PageSource | None = None
        self._agent: Agent | None = None
        self._address = Address(host, 0)  # the port once it listens
        self._open = ExitStack()  # what has to be closed, on the progress thread
        plan, agreed = plan_of(options), what_must_agree(options)  # first: they may refuse the options
        with ExitStack() as undo:
            self._loop = ProgressThread("multiworld-agent")
            undo.callback(self._loop.stop)
            self._pump = _pump(options)
            undo.callback(self._pump.close, timeout_s=LOG_S, keep=False)
            self._services = TorchServices(self._loop, options, os.environ, self._overran)
            undo.pop_all()
        token = (options.token or "").encode()
        agent_id = secrets.token_hex(16)
        self._leadership = Leadership(
            self._loop,
            plan,
            token=token,
            lease_s=options.lease_s,
            digest=agreed,
            rendezvous=rendezvous,
            on_over=self._ended,
        )
        if reaping is not None:
            OrphanReaper(self._loop, reaping)
        self._loop.call_soon(partial(self._begin, agent_id, token, host, server))

    @property
    def run_dir(self) -> str | None:
        return self._pump.run_dir

    @property
    def ranks(self) -> dict[int, int]:
        """The ranks that the workers of this host had at last, by their local ranks."""
        held = [] if self._agent is None else self._agent.held
        return {each.assignment.local_rank: each.assignment.rank for each in held}

    def discard_empty_logs(self) -> None:
        self._pump.discard_empty()

    def wait(self) -> Outcome:
        self._over.wait()
        assert self._outcome is not None
        return self._outcome

    def signalled(self, signum: int) -> None:
        """The first asks the job to end; the second ends this host's part of it at once."""
        self._num_signals += 1
        if self._num_signals == 1:
            self._loop.call_soon(partial(self._leadership.interrupt, signum))
        else:
            self._ended(Outcome(status=SIGNALLED + signum, text="ended at once", signum=signum))

    def close(self, outcome: Outcome) -> None:
        """End what is left, and wait for it."""
        closed = threading.Event()
        self._loop.call_soon(partial(self._close, closed))
        closed.wait(STOP_S)
        if self._page is not None:
            self._page.join(STOP_S)
        self._rendezvous.wait_closed(STOP_S)
        self._services.close(outcome)
        self._loop.stop()
        self._pump.close(timeout_s=LOG_S, keep=bool(outcome.status) and outcome.signum is None)

    def _begin(self, agent_id: str, token: bytes, host: str, server: ForkServer) -> None:
        try:
            policy = LivenessPolicy(lease_s=self._options.lease_s)
            self._open.callback(server.close)
            links = AgentLinks(self._loop, self._leadership, policy, token, self._options.run_id, agent_id)
            self._open.callback(links.close)
            links.routes[CONTROL] = lambda pending: control.admit(pending)
            self._address = Address(host, links.listen(host, 0))
            agent = self._agent = Agent(
                self._loop,
                self._options,
                token=token,
                address=host,
                fork_server=server,
                pump=self._pump,
                inherited={**os.environ, **self._services.variables},
                metrics=self._services.metrics,
                report=self._leadership.report,
                door=lambda: links.door,
            )
            self._open.callback(agent.close)
            self._rendezvous.attach(self._loop, self._address)
            self._open.callback(self._rendezvous.close)
            info = AgentInfo(
                id=agent_id,
                host=host,
                port=self._address.port,
                hostname=self._options.host_name or socket.gethostname(),
                pid=os.getpid(),
                num_workers=self._options.num_workers,
                role=self._options.role,
                node_rank=self._options.node_rank,
                devices=_devices(),
                device_indices=device_indices(os.environ, len(gpu_models()), self._options.num_workers),
                host_id=host_identity().hex(),
            )
            control = ControlServer(
                self._loop,
                run_id=self._options.run_id,
                agent_id=agent_id,
                token=token,
                chief=self._leadership,
                agent=agent,
                pump=self._pump,
                page=lambda: page.url,
            )
            self._open.callback(control.close)
            page = self._page = PageSource(
                self._loop,
                self._options.page,
                token=self._options.token or "",
                host=host,
                status=control.status,
                read_lines=lambda agent, rank, last: read_lines(agent.host, agent.port, token, rank, last),
            )
            self._open.callback(page.close)
            self._leadership.on_control = control.heard
            self._leadership.on_leading = self._leads
            self._leadership.begin(links, agent, info)
        except Exception as error:
            logger.debug("the agent cannot begin", exc_info=True)
            self._ended(Outcome(status=1, text=f"the agent cannot begin on {host}: {error}"))

    def _leads(self, coordinator: Coordinator | None) -> None:
        """This agent coordinates the job from now on; None: no longer."""
        assert self._page is not None
        self._page.leads(coordinator)
        if coordinator is not None and coordinator.term == 1 and self._options.is_announced:
            logger.warning("%s", announcement(self._options.run_id, *self._address, self._page.url))

    def _overran(self, timer: OverrunTimer) -> None:
        agent = self._agent
        if agent is not None:
            self._loop.call_soon(partial(agent.overran, timer))

    def _ended(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._over.set()

    def _close(self, closed: threading.Event) -> None:
        try:
            self._open.close()
        finally:
            closed.set()


class _Signals:
    """Signals that end the job instead of this process. Those that come before ``tell`` are told then."""

    def __init__(self) -> None:
        self._noted: list[int] = []
        self._on_signal: Callable[[int], None] = self._noted.append

    def tell(self, on_signal: Callable[[int], None]) -> None:
        self._on_signal = on_signal
        while self._noted:
            on_signal(self._noted.pop(0))

    def take(self, signum: int, frame: FrameType | None) -> None:
        self._on_signal(signum)


@contextmanager
def _logs_carried() -> Iterator[None]:
    """Let no thread of the agent wait for the reader of the log."""
    carrier = LogCarrier(*map(logging.getLogger, CARRIED))
    try:
        yield
    finally:
        carrier.close(LAST_WORDS_S)


def _devices() -> str:
    """Return for example ``8 × NVIDIA H100 80GB HBM3, 96 cores``."""
    cores = len(os.sched_getaffinity(0))
    parts = [f"{count} × {model}" for model, count in Counter(gpu_models()).items()]
    return ", ".join([*parts, f"{cores} core{'s' if cores > 1 else ''}"])


def _pump(options: JobOptions) -> LogPump:
    try:
        return LogPump(options.logs, role=options.role, run_id=options.run_id, num_workers=options.num_workers)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise JobError(options.run_id, f"no logs can be kept: {error}") from error
        where = "the temporary folder" if options.logs.log_dir is None else f"--log-dir {options.logs.log_dir}"
        raise ValueError(f"{where}: no logs can be kept there ({error}); give another --log-dir") from error


def _token(options: JobOptions, host: str) -> str | None:
    """Return what every process of the job must prove; random where nobody else needs to know it, None if unset."""
    if options.token is None and options.is_alone:
        return secrets.token_hex(16)
    token = options.token or os.environ.get(TOKEN_VARIABLE)
    if token:
        warn_of_weakness(token)
        return token
    if not is_loopback(host):
        logger.warning("%s is not set: whoever reaches this host can join the job, and run its program", TOKEN_VARIABLE)
    return None


def _conclude(options: JobOptions, outcome: Outcome, run_dir: str | None) -> None:
    """Say how it ended, and raise what the caller expects."""
    failures = in_causal_order(outcome.failures)
    _record_event(options, outcome)
    if failures and outcome.status and outcome.signum is None:
        told = report(failures[0], failures[1:], run_id=options.run_id, done=outcome.text, logs=run_dir)
        tell(sys.stderr, f"{told['text']}\n", LOG_S)
        if run_dir is not None:
            _keep(Path(run_dir, "failure.json"), json.dumps(told, indent=2) + "\n")
    if outcome.signum is not None and outcome.status:
        name = signal_name(outcome.signum)
        raise SignalException(f"the job was ended by {name}", signal.Signals(outcome.signum))
    if failures and outcome.status:
        name = options.entrypoint.named or options.entrypoint.target
        raise to_child_failed_error(failures, name=name, error_dir=run_dir)
    if outcome.status:
        raise JobError(options.run_id, outcome.text)


def _keep(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:  # a full disk may be why the job failed: that has to be told all the same
        logger.warning("the report was not written: %s", error)


def _record_event(options: JobOptions, outcome: Outcome) -> None:
    """Tell the user's event handler, as torchrun does at the end of its agent."""
    state = "FAILED" if outcome.status else "SUCCEEDED"
    metadata: dict[str, Any] = {
        "run_id": options.run_id,
        "role": options.role,
        "hostname": socket.gethostname(),
        "state": state,
        "rdzv_backend": options.rdzv_backend,
        "raw_error": outcome.text if outcome.status else None,
    }
    event = Event(name=f"torchelastic.worker.status.{state}", source=EventSource.AGENT, metadata=metadata)
    events.record(event, options.event_log_handler)
