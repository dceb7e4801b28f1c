"""One host of a job as torchrun's agent uses it: an agent of ours on its own thread, and calls that wait for it."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from torch._C._distributed_c10d import Store
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousInfo,
    RendezvousTimeoutError,
)

from ...process.logs.carrier import LogCarrier
from ...wire.descriptors import raise_limit
from ...wire.messages import Json
from ...wire.progress.operation import Operation
from ...wire.progress.thread import ProgressThread
from ...wire.progress.waiting import run_in_thread, wait_blocking
from ...world.liveness import LivenessPolicy
from ..agent.master_store import MasterKeeper, MasterStore
from ..control.messages import PURPOSE as CONTROL
from ..job.actions import Master, MasterOpened, Outcome
from ..job.agreement import plan_of, what_must_agree
from ..job.layout import AgentInfo
from ..job.options import JobOptions
from ..leadership.leadership import Leadership
from ..leadership.links import AgentLinks
from ..rendezvous.base import Address, Rendezvous
from .generation_store import GenerationStore, Standing, gather
from .stand_in import ROLE, Part, StandIn

if TYPE_CHECKING:
    from ..agent.agent import Agent

logger = logging.getLogger(__name__)
T = TypeVar("T")

NEWS_S = 10.0  # for what broke the gathering to be known, a host that was cut off for example
END_S = 2.0
LAST_WORDS_S = 1.0
CLOSED = "a host has closed the rendezvous"
NOT_OURS = "the agents of this job are torchrun's, which answer no questions about it"
FINISHED = "the workers of this host have ended well"

_loops: weakref.WeakSet[ProgressThread] = weakref.WeakSet()
_carriers: weakref.WeakSet[LogCarrier] = weakref.WeakSet()


class Node:
    """``next`` and the others may be called from any one thread, and are interrupted by signals as torchrun expects."""

    def __init__(self, options: JobOptions, rendezvous: Rendezvous, address: str) -> None:
        self._options, self._rendezvous, self._address = options, rendezvous, address
        self._plan = plan_of(options)
        self._changed = threading.Condition()
        self._outcome: Outcome | None = None
        self._store: Store | None = None
        self._links: AgentLinks
        self._carrier = LogCarrier(logging.getLogger("multiworld"))  # a console that nobody reads must stop no agent
        raise_limit()  # a coordinator holds a link to every agent
        self._loop = ProgressThread("multiworld-node")
        _close_in_children(self._loop, self._carrier)
        self._masters = MasterKeeper(self._loop, address, self._serving)
        self._leadership = Leadership(
            self._loop,
            self._plan,
            token=(options.token or "").encode(),
            lease_s=options.lease_s,
            digest=_digest(options),
            rendezvous=rendezvous,
            on_over=self._ended,
        )
        self._stand_in = StandIn(
            self._leadership.report,
            open_master=self._masters.open,
            serving=self._what_is_served,
            on_change=self._tell,
            on_left=self._leave,
        )
        try:
            self._call(self._begin)
        except BaseException:
            self._stop_loop()
            raise

    # ---- for torchrun's agent

    @property
    def is_over(self) -> bool:
        return self._outcome is not None

    @property
    def is_wanted(self) -> bool:
        """Whether torchrun's agent should stop its workers, and ask for the next generation."""
        return self.is_over or self._stand_in.is_wanted

    def next(self) -> RendezvousInfo:
        """Wait for the next generation that this host is in, with all others of it there. Raises RendezvousError."""
        self._close_store()
        self._call(self._stand_in.arrive)
        while True:
            part = self._wait_for_part()
            info = self._gather(part)
            if info is None:
                continue
            self._store = info.store
            if self._call(partial(self._stand_in.depart, part)):
                return info
            self._close_store()

    def end_job(self) -> None:
        """End it on every host; those that find it out stop their workers."""
        if not self.is_over:
            self._call(partial(self._leadership.interrupt, int(signal.SIGTERM), CLOSED))
            self._call(lambda: None)  # what that began is told to the others by now

    def close(self) -> None:
        """Leave the job. The others end with this host if it gives up in a generation that is intact."""
        out = self._stand_in.out
        if self._stand_in.has_finished:
            with self._changed:
                self._changed.wait_for(lambda: self.is_over, END_S)
        elif out is not None and self._standing(out) is Standing.STANDS:
            self.end_job()
        self._close_store()
        self._call(self._close)
        self._rendezvous.wait_closed(END_S)
        self._stop_loop()

    def _stop_loop(self) -> None:
        self._loop.stop()
        self._carrier.close(LAST_WORDS_S)
        _loops.discard(self._loop)  # its descriptors may be others' from now on
        _carriers.discard(self._carrier)

    # ---- waiting

    def _wait_for_part(self) -> Part:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.is_over or self._stand_in.ready is not None)
            self._raise_if_over()
            part = self._stand_in.ready
            if part is not None:  # and not over again already
                return part

    def _gather(self, part: Part) -> RendezvousInfo | None:
        """Wait for the other hosts of the generation; None if it is over already. On a thread, as c10d may block."""
        gathering = run_in_thread(partial(self._gather_blocking, part), "multiworld-gathering")
        gathering.add_callback(lambda _: self._tell())
        with self._changed:
            self._changed.wait_for(lambda: gathering.done or self._stand_in.ready is not part or self.is_over)
            if not gathering.done or gathering.error is not None:
                self._changed.wait_for(lambda: self._stand_in.ready is not part or self.is_over, NEWS_S)
        if self.is_over or self._stand_in.ready is not part:
            gathering.add_callback(_close_unwanted)
            self._raise_if_over()
            return None
        if gathering.error is not None:
            place, why = part.assignment, gathering.error
            raise RendezvousConnectionError(
                f"the hosts of generation {place.generation} do not come together at the store on "
                f"{place.master_addr}:{place.master_port}: {why}; can it be reached from every host?"
            ) from why
        return gathering.result()

    def _gather_blocking(self, part: Part) -> RendezvousInfo:
        store = GenerationStore(
            part.assignment,
            self._plan.join_timeout_s,
            standing=partial(self._standing, part),
            on_finished=partial(self._loop.call_soon, partial(self._stand_in.finish, part)),
        )
        try:
            return gather(store, part.assignment, self._address)
        except BaseException:
            store.close()
            raise

    def _standing(self, part: Part) -> Standing:
        outcome = self._outcome
        if outcome is not None:
            return Standing.LOST if outcome.status else Standing.DONE
        return Standing.STANDS if part.stands else Standing.LOST

    def _raise_if_over(self) -> None:
        outcome = self._outcome
        if outcome is None:
            return
        text = f"rendezvous {self._options.run_id!r}: {outcome.text}"
        if outcome.signum is not None:  # our way to end a job, see ``end_job``
            raise RendezvousClosedError(f"rendezvous {self._options.run_id!r} was closed, by this host or another")
        if not outcome.status:
            raise RendezvousGracefulExitError(text)
        raise RendezvousTimeoutError(text) if self._stand_in.has_met else RendezvousConnectionError(text)

    def _close_store(self) -> None:
        if isinstance(self._store, GenerationStore):
            self._store.close()
        self._store = None

    def _call(self, work: Callable[[], T]) -> T:
        """Have it done on the progress thread."""
        done: Operation[T] = Operation()
        self._loop.call_soon(partial(_complete, done, work))
        return wait_blocking(done)

    # ---- on the progress thread

    def _begin(self) -> None:
        options = self._options
        agent_id = secrets.token_hex(16)
        policy = LivenessPolicy(lease_s=options.lease_s)
        token = (options.token or "").encode()
        links = self._links = AgentLinks(self._loop, self._leadership, policy, token, options.run_id, agent_id)
        links.routes[CONTROL] = lambda pending: pending.refuse(NOT_OURS)
        port = links.listen(self._address, 0)
        self._rendezvous.attach(self._loop, Address(self._address, port))
        info = AgentInfo(
            id=agent_id,
            host=self._address,
            port=port,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            num_workers=1,
            role=ROLE,
        )
        self._leadership.begin(links, cast("Agent", self._stand_in), info)

    def _serving(self, master: MasterStore) -> None:
        self._leadership.report(MasterOpened(generation=master.generation, address=master.address, port=master.port))

    def _what_is_served(self) -> Master | None:
        master = self._masters.current
        return None if master is None else Master(master.generation, master.address, master.port)

    def _leave(self) -> None:
        """Let the others go on without this host."""
        self._leadership.end(Outcome(status=0, text=FINISHED), of_job=False)
        self._links.close()

    def _ended(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._tell()

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _close(self) -> None:
        self._leadership.abort()
        self._links.close()
        self._masters.close()


def _digest(options: JobOptions) -> Mapping[str, Json]:
    """Return what must agree, but for what is torchrun's affair."""
    agreed = {**what_must_agree(options), "the launcher": "torchrun"}
    return {name: value for name, value in agreed.items() if name not in ("--restart", "--max-restarts")}


def _complete(operation: Operation[T], work: Callable[[], T]) -> None:
    try:
        operation.succeed(work())
    except Exception as error:  # it belongs to the one who waits
        operation.fail(error)


def _close_unwanted(gathering: Operation[RendezvousInfo]) -> None:
    store = gathering.result().store if gathering.error is None else None
    if isinstance(store, GenerationStore):
        store.close()


def _close_in_children(loop: ProgressThread, carrier: LogCarrier) -> None:
    """A worker that is forked would keep our links open, so that nobody would notice our death."""
    if not _loops:
        os.register_at_fork(after_in_child=_forked)
    _loops.add(loop)
    _carriers.add(carrier)


def _forked() -> None:
    for loop in list(_loops):
        loop.abandon_after_fork()
    _loops.clear()
    for carrier in list(_carriers):
        carrier.give_back()
    _carriers.clear()
