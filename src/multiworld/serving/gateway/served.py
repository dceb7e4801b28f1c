"""What the gateway asks of that which it serves: an interface, so that it knows nothing of pipelines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeGuard

from ...channel.base import Payload
from ...model.signature import Signature
from ..ingress.answers import Asked, Report

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "Metric",
    "Payload",
    "Report",
    "Sample",
    "Served",
    "StreamingServed",
    "can_report",
    "can_stream",
    "signature_of",
]

Sample = tuple[Mapping[str, str], float]
"""Labels, and the value under them."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One family of samples for Prometheus. Its name is its key in ``Served.metrics()``, without ``multiworld_``.

    A counter's name ends in ``_total``. ``samples`` of a summary have the label ``quantile``; ``sum`` and ``count`` are
    of a summary alone.
    """

    kind: Literal["counter", "gauge", "summary"]
    help: str
    samples: Sequence[Sample] = field(default=())
    sum: float = 0.0
    count: float = 0.0


class Served(Protocol):
    """Answers payloads. Used on the gateway's own loop, by many requests at once.

    It may have a ``signature``, of ``multiworld.serving.Signature``, for KServe's clients.
    """

    @property
    def name(self) -> str:
        """By which name KServe's clients ask for it."""

    async def infer(self, payload: Payload, **asked: Unpack[Asked]) -> Payload:
        """Answer one request. It is cancelled when the client has gone, and when the gateway must stop.

        A ``report`` is given only to what has a true attribute ``reports``. The tensors of the payload are its own:
        nobody else writes or reads them. Those of the answer must not change after it was returned.

        Raises the errors of ``multiworld.serving.errors``, whose ``http_status`` becomes the answer's.
        """

    def readiness(self) -> tuple[bool, str]:
        """Return whether a request would be answered now, and if not, why, as a sentence without a full stop."""

    def status(self) -> Mapping[str, object]:
        """Return what there is to know, as JSON."""

    def metrics(self) -> Mapping[str, Metric | float]:
        """Return what Prometheus is to see, by name without ``multiworld_``. A bare number is a gauge."""


class StreamingServed(Served, Protocol):
    """Answers some payloads with a series of payloads, each as soon as it is there."""

    def stream(self, payload: Payload, **asked: Unpack[Asked]) -> AsyncIterator[Payload]:
        """As ``infer``. What it returns is closed (``aclose``, if it has one) when nobody wants the rest."""


def can_report(served: object) -> bool:
    """Whether ``infer``, and ``stream`` if there is one, fill in a report."""
    return bool(getattr(served, "reports", False))


def can_stream(served: Served) -> TypeGuard[StreamingServed]:
    """Whether it is a StreamingServed."""
    return callable(getattr(served, "stream", None))


def signature_of(served: object) -> Signature | None:
    """Return what it takes and gives, if it says so."""
    signature = getattr(served, "signature", None)
    return signature if isinstance(signature, Signature) else None
