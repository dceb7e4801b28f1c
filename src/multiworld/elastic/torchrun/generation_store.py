"""The c10d store of one generation, for torchrun's agents: nobody waits in it for longer than the generation lasts."""

from __future__ import annotations

import enum
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TypeVar, cast

from torch._C._distributed_c10d import TCPStore
from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousInfo, RendezvousStoreInfo

from ...wire.backoff import BackOff
from ...wire.endpoints.addresses import family_of
from ...wire.progress.waiting import run_in_thread
from ..job.assignment import Assignment
from .rank_exchange import RankExchange

T = TypeVar("T")

PREFIX = "multiworld/"
CONNECT_S = 30.0
FIRST_PAUSE_S, MAX_PAUSE_S = 0.005, 0.1
LOOK_S = 0.05
NEWS_S = 2.0  # who dies takes the store along, and we hear of that in another way


class Standing(enum.Enum):
    """How the generation of a store is."""

    STANDS = "stands"
    LOST = "lost"
    DONE = "done"  # all workers of all hosts have ended well


class GenerationStore(TCPStore):
    """A client. ``standing`` says how its generation is; ``on_finished`` is told when this host's workers have ended.

    That shows by torchrun's agent coming to its exit barrier, the only place where it adds to anything.
    """

    def __init__(
        self, place: Assignment, timeout_s: float, standing: Callable[[], Standing], on_finished: Callable[[], None]
    ) -> None:
        self._place, self._standing, self._on_finished = place, standing, on_finished
        self._is_handed_over = self._has_finished = False
        self._exchange = RankExchange(place.num_nodes)
        self._port: socket.socket | None = None
        super().__init__(
            place.master_addr,
            place.master_port,
            None,
            is_master=False,
            timeout=timedelta(seconds=min(CONNECT_S, timeout_s)),
            wait_for_workers=False,
        )
        self.set_timeout(timedelta(seconds=timeout_s))

    def hand_over(self) -> None:
        """From now on it is torchrun's agent that uses it."""
        self._is_handed_over = True

    def reserve_port(self, host: str) -> int:
        """Return a port at which a worker can listen, and nobody else will meanwhile."""
        self._port = socket.socket(family_of(host), socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the store that listens there has it
        self._port.bind((host, 0))
        return int(self._port.getsockname()[1])

    def close(self) -> None:
        """Free the port."""
        if self._port is not None:
            self._port.close()

    def add(self, key: str, value: int) -> int:
        if self._is_handed_over and not self._has_finished:
            self._has_finished = True
            self._on_finished()
        return self._say(partial(super().add, key, value), 0)  # the wait that follows says what the loss means

    def set(self, key: str, value: str) -> None:
        self._exchange.said(key, value)
        self._say(partial(super().set, key, value), None)

    def multi_set(self, keys: list[str], values: list[str]) -> None:
        self._say(partial(super().multi_set, keys, values), None)  # type: ignore[misc]  # PyTorch's stubs lack it

    def get(self, key: str) -> bytes:
        try:
            self.wait([key])
            return self._ask(partial(super().get, key))
        except (RendezvousConnectionError, DistNetworkError):
            answer = self._exchange.answer(key)
            if answer is None or self._news() is not Standing.LOST:
                raise
            return answer

    def multi_get(self, keys: list[str]) -> list[bytes]:
        try:
            self.wait(keys)
            return self._ask(partial(super().multi_get, keys))
        except (RendezvousConnectionError, DistNetworkError):
            return [self.get(key) for key in keys]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """As c10d's, but raises RendezvousConnectionError when the generation is lost.

        Who has finished does not wait for hosts that are not there any more.
        """
        limit: timedelta = self.timeout if timeout is None else timeout  # type: ignore[attr-defined]
        began, pauses = time.monotonic(), BackOff(FIRST_PAUSE_S, MAX_PAUSE_S)
        while not self._look(keys):
            if time.monotonic() - began > limit.total_seconds():
                raise DistStoreError(f"after {limit.total_seconds():g} s the store has no {', '.join(keys)}")
            time.sleep(pauses.next_s())

    def _look(self, keys: list[str]) -> bool:
        if self._has_finished and self._standing() is not Standing.STANDS:
            return True  # unasked, as a store that is being closed makes c10d noisy
        try:
            if self._ask(partial(self.check, keys)):  # also if the generation is over by now: this host may be slow
                return True
            standing = self._standing()
        except DistNetworkError:
            standing = self._news()
            if standing is Standing.STANDS:
                raise
        if standing is Standing.STANDS:
            return False
        if self._has_finished or standing is Standing.DONE:
            return True
        generation = self._place.generation
        raise RendezvousConnectionError(f"generation {generation} is lost: a host went, came, or begins anew")

    def _ask(self, call: Callable[[], T]) -> T:
        """Have c10d asked on a thread: it knows no deadline, and a host that is stopped or cut off never answers.

        Raises DistNetworkError if the generation is over before an answer has come.
        """
        asking = run_in_thread(partial(_answer_or_error, call), "multiworld-store-call")
        answered = threading.Event()
        asking.add_callback(lambda _: answered.set())
        while not answered.wait(LOOK_S):
            if self._standing() is not Standing.STANDS and not answered.wait(LOOK_S):
                raise DistNetworkError("the store did not answer before its generation was over")
        answer, error = asking.result()
        del asking  # it has the error, which will have this frame: the cycle would keep the connection
        try:
            if error is not None:
                raise error
        finally:
            del error
        return cast("T", answer)

    def _say(self, call: Callable[[], T], if_lost: T) -> T:
        """Have something written; nobody reads what is written for a generation that is over."""
        try:
            return self._ask(call)
        except DistNetworkError:
            if self._news() is Standing.STANDS:
                raise
            return if_lost

    def _news(self) -> Standing:
        """Wait for what the loss of the store means."""
        began = time.monotonic()
        while self._standing() is Standing.STANDS and time.monotonic() - began < NEWS_S:
            time.sleep(FIRST_PAUSE_S)
        return self._standing()


def _answer_or_error(call: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return call(), None
    except Exception as error:
        return None, error.with_traceback(None)


def gather(store: GenerationStore, place: Assignment, address: str) -> RendezvousInfo:
    """Wait until every host of the generation is here. ``address``: at which others reach this host. Blocks."""
    port = store.reserve_port(address) if place.node_rank == 0 else None
    bootstrap = RendezvousStoreInfo.build(place.node_rank, store, address, port)
    if store.add(f"{PREFIX}here", 1) == place.num_nodes:
        store.set(f"{PREFIX}all here", "yes")
    store.wait([f"{PREFIX}all here"])
    store.hand_over()
    return RendezvousInfo(store, place.node_rank, place.num_nodes, bootstrap)
