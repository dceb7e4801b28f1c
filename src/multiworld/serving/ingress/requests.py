"""Which requests a gateway has open, and which it has answered: one answer per id, deadlines, admission. Pure."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from typing import Any, Final

from ..flow.context import RequestContext
from ..flow.latencies import Latencies
from ..flow.retry import Retries
from .admission import Admission
from .patience import Patience

NUM_LATENCIES: Final = 1024
SPARE_DEADLINES: Final = 1024
KEPT_OVERHEAD_BYTES: Final = 1024


class Open:
    """A request without its answer. ``item``: its input as it is sent. ``waiter``: whoever waits for the answer."""

    __slots__ = (
        "attempt", "chosen", "contexts", "deadline", "digest", "id", "is_shared", "item", "label", "num_waiters",
        "opened_at", "parts", "sent_at", "size_bytes", "trace", "waiter",
    )  # fmt: skip

    def __init__(
        self, id_: bytes, item: Any, waiter: Any, *, opened_at: float, deadline: float, size_bytes: int
    ) -> None:
        self.id, self.item, self.waiter = id_, item, waiter
        self.opened_at, self.deadline, self.size_bytes = opened_at, deadline, size_bytes
        self.attempt = 1
        self.sent_at = opened_at
        """When the last attempt began."""
        self.chosen: str | None = None
        """The id that the client chose, with which it may come back."""
        self.digest = b""
        """Of its payload, if the client chose an id."""
        self.label = ""
        """What traces call it, unless the client chose an id."""
        self.num_waiters = 1
        self.is_shared = False
        """Whether several wait for its answer, or did."""
        self.parts: dict[str, Any] = {}
        """The answers of the output stages that have come so far."""
        self.contexts: dict[str, RequestContext] = {}
        """What was noted on them on their way, by stage; nothing on most."""
        self.trace: Any = None
        """What the tracer knows of it; None: it is not traced."""


class Requests:
    """The table of one gateway."""

    def __init__(self, admission: Admission, *, may_lose_held: bool = False) -> None:
        """``may_lose_held``: what the first stage has still in hand for one branch may be lost in another one."""
        self.admission = admission
        self._patience = Patience(admission.max_wait_s)
        self.latencies = Latencies(NUM_LATENCIES)
        self.num_answered = self.num_failed = self.num_refused = self.num_repeated = 0
        self._open: dict[bytes, Open] = {}
        self.retries = Retries(self._open, self.latencies, may_lose_held=may_lose_held)
        self._open_bytes = 0
        self._deadlines: list[tuple[float, bytes]] = []
        self._chosen: dict[str, Open] = {}
        self._kept: OrderedDict[str, tuple[float, int, Any]] = OrderedDict()
        self._kept_bytes = 0
        self._rate: deque[float] = deque(maxlen=64)  # of answers

    def __len__(self) -> int:
        return len(self._open)

    def get(self, id_: bytes) -> Open | None:
        return self._open.get(id_)

    def chosen(self, request_id: str) -> Open | None:
        """Return the open request to which the client gave this id."""
        return self._chosen.get(request_id)

    def all_open(self) -> list[Open]:
        return list(self._open.values())

    @property
    def open_bytes(self) -> int:
        return self._open_bytes

    def retry_after_s(self, size_bytes: int, *, now: float, waited_s: float = 0.0) -> float | None:
        """Return None if there is room for one more request, else in how many seconds there should be.

        ``waited_s``: how long the first of those has waited that no replica has room for.
        """
        admission = self.admission
        fits = self._open_bytes + size_bytes <= admission.max_bytes or not self._open
        num_open, per_s = len(self._open), None
        if waited_s > admission.max_wait_s or num_open >= admission.max_open or not fits:
            per_s = self._per_s(now)
        may_wait = self._patience.allows(waited_s, ahead=num_open, per_s=per_s, now=now)
        if may_wait and fits and num_open < admission.max_open:
            return None
        self.num_refused += 1
        if per_s is None:
            return 1.0
        return min(max(0.25 * len(self._open) / per_s, 0.05), 30.0)

    def _per_s(self, now: float) -> float | None:
        """Return how many answers there are in a second lately."""
        return None if len(self._rate) < 2 else (len(self._rate) - 1) / max(now - self._rate[0], 1e-3)

    def open(self, request: Open) -> None:
        self._open[request.id] = request
        self._open_bytes += request.size_bytes
        if request.chosen is not None:
            self._chosen[request.chosen] = request
        if request.deadline < math.inf:
            heapq.heappush(self._deadlines, (request.deadline, request.id))
            if len(self._deadlines) > 2 * len(self._open) + SPARE_DEADLINES:
                self._deadlines = [
                    (open_.deadline, id_) for id_, open_ in self._open.items() if open_.deadline < math.inf
                ]
                heapq.heapify(self._deadlines)

    def answered(self, id_: bytes, answer: Any, size_bytes: int, *, now: float) -> Open | None:
        """Close a request with its answer, and return it; None if it was closed before.

        If the client chose the id, the answer is kept: it must not be changed any more.
        """
        request = self._close(id_)
        if request is None:
            self.num_repeated += 1
            return None
        self.num_answered += 1
        self._rate.append(now)
        self.latencies.add(now - request.opened_at)
        if request.chosen is not None:
            self._keep(request.chosen, answer, size_bytes, now)
        return request

    def failed(self, id_: bytes) -> Open | None:
        """Close a request without an answer, and return it; None if it was closed before."""
        request = self._close(id_)
        if request is not None:
            self.num_failed += 1
        return request

    def kept(self, request_id: str, *, now: float) -> Any:
        """Return the answer of a request whose id was chosen by the client, None if there is none (any more)."""
        self._expire_kept(now)
        entry = self._kept.get(request_id)
        return None if entry is None else entry[2]

    def expired(self, *, now: float) -> list[Open]:
        """Return the open requests whose deadline is over; they stay open until ``failed``."""
        late: list[Open] = []
        while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][1] not in self._open):
            request = self._open.get(heapq.heappop(self._deadlines)[1])
            if request is not None and request.deadline <= now:
                late.append(request)
        return late

    # ---- inside

    def _close(self, id_: bytes) -> Open | None:
        request = self._open.pop(id_, None)
        if request is not None:
            self._open_bytes -= request.size_bytes
            if request.chosen is not None and self._chosen.get(request.chosen) is request:
                del self._chosen[request.chosen]
        return request

    def _keep(self, request_id: str, answer: Any, size_bytes: int, now: float) -> None:
        self._expire_kept(now)
        size_bytes += KEPT_OVERHEAD_BYTES
        if size_bytes > self.admission.keep_bytes:
            return
        self._kept_bytes -= self._kept.pop(request_id, (0.0, 0, None))[1]
        self._kept[request_id] = (now, size_bytes, answer)
        self._kept_bytes += size_bytes
        while self._kept_bytes > self.admission.keep_bytes:
            self._forget_oldest()

    def _expire_kept(self, now: float) -> None:
        while self._kept and next(iter(self._kept.values()))[0] < now - self.admission.keep_s:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, (_, size_bytes, _) = self._kept.popitem(last=False)
        self._kept_bytes -= size_bytes
