"""An answer that comes in parts, as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping

from ....observe.event_stream import event
from ..error_body import HttpError
from ..formats.json_format import as_object
from ..formats.json_writing import TensorWriter, dumps
from ..served import Payload

Writers = Callable[[], TensorWriter]
"""Gives each event a writer of its own."""


async def first_event(stream: AsyncIterator[Payload], writers: Writers) -> bytes | None:
    """Return the first event, so that what goes wrong before it is an answer of its own; None: there is none."""
    async for payload in stream:
        return await _payload_event(payload, writers())
    return None


async def remaining_events(
    first: bytes | None,
    stream: AsyncIterator[Payload],
    writers: Writers,
    refused: Callable[[Exception], HttpError],
    told: Callable[[], dict[str, str]],
) -> AsyncGenerator[bytes, None]:
    """Yield an event per payload, then ``event: done`` with what is told at the end; ``event: error``, if it fails."""
    try:
        if first is not None:
            yield first
            async for payload in stream:
                yield await _payload_event(payload, writers())
        yield _event(told(), name="done")
    except Exception as error:
        yield error_event(refused(error))
    finally:
        await close(stream)


async def close(stream: AsyncIterator[Payload]) -> None:
    """End what nobody wants the rest of."""
    aclose = getattr(stream, "aclose", None)
    if aclose is not None:
        await aclose()


def error_event(error: HttpError) -> bytes:
    """Return the last event of a stream that failed."""
    return _event(error.to_json(), name="error")


async def _payload_event(payload: Payload, writer: TensorWriter) -> bytes:
    value = await as_object(payload, writer)
    return event(*writer.dump(value))


def _event(value: Mapping[str, object], *, name: str) -> bytes:
    return event(dumps(value), name=name)
