"""What a service under test offers to the scenarios, ours and the peer's alike. No torch, no ``multiworld``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

__all__ = ["Deployer", "Shape", "System"]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is deployed.

    ``graph``: ``trivial`` (``add`` one, ``mul``tiply by two), ``rhombus`` (``head``, ``left`` and ``right``,
    ``tail``), ``moody`` (one stage that may raise or return garbage), ``chain`` (three modules of a few
    milliseconds), ``slow`` (one stage, ``left``, one of whose replicas is 4 times slower) or ``heavy`` (one stage,
    ``left``, of ``weights_bytes``). ``replicas``: of ``left``. ``service_s``: how long ``left`` (and twice as long
    as ``right``) takes for a request. ``setup_s``: how long replicas of ``left`` other than the first ones are set
    up. ``far``: the address of another host, on which half of them run; ``address``: this one's. ``port``: for
    HTTP, or for the other host. ``patience_s``: above 0, how long a client may pause, and NaN is refused.
    """

    graph: str = "trivial"
    size_bytes: int = 4096
    replicas: int = 1
    max_replicas: int = 8
    service_s: float = 0.005
    weights_bytes: int = 50_000_000
    setup_s: float = 0.0
    far: str = ""
    address: str = ""
    has_http: bool = False
    patience_s: float = 0.0
    port: int = 0

    def to_fields(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Shape:
        return cls(**fields)


class System(Protocol):
    """A pipeline that serves. Used on one event loop."""

    @property
    def refusals(self) -> tuple[type[Exception], ...]:
        """What ``infer`` raises when it will not take a request in, as under overload."""

    async def infer(self, payload: Any, *, request_id: str | None, timeout_s: float) -> Any: ...

    def sample(self, number: int) -> tuple[Any, Any]:
        """Return a payload, and what one process that calls the modules one after the other makes of it."""

    def direct(self, payload: Any) -> Any:
        """Have this process call the modules one after the other."""

    def is_equal(self, answer: Any, expected: Any) -> bool:
        """Whether all bits are the same."""

    def pids(self, stage: str) -> list[int]:
        """Return the processes of a stage's replicas, also of those that only come up."""

    def pids_at(self, stage: str, address: str) -> list[int]:
        """Return those of a stage's replicas that are on the host of that address."""

    def is_whole(self, stage: str, replicas: int, without: Collection[int] = ()) -> bool:
        """Whether that many replicas take requests, and none of those processes is among the stage's."""

    async def scale(self, stage: str, replicas: int) -> None: ...

    async def update(self, stage: str) -> None:
        """Give it new weights, equal to the old ones."""

    async def drain(self, stage: str) -> None:
        """Have one of its replicas finish and be replaced."""

    def is_ready(self) -> bool: ...

    def num_answered(self) -> int:
        """How many requests the service itself says that it has answered."""

    def url(self) -> str:
        """Where a payload's bytes are posted, as float32, if it is served over HTTP."""

    def processes(self) -> list[int]:
        """Return all its processes, without the one that asks."""


class Deployer(Protocol):
    """Brings a service up for the time of a ``with`` block."""

    def __call__(self, shape: Shape) -> AbstractAsyncContextManager[System]: ...
