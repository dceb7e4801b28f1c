"""The formats of a body: which content type means which, and which one an answer gets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..error_body import HttpError
from ..http.budget import Budget
from ..http.request_head import qualities
from ..served import Payload
from . import json_format, npy_format, raw_format, safetensors_format
from .elements import Buffer, num_bytes_of
from .json_writing import TensorWriter

Encoded = tuple[list[Buffer], dict[str, str]]
"""The pieces of a body, and what the head says about them besides the content type."""


@dataclass(frozen=True)
class Format:
    """One way to write payloads. ``decode`` raises ValueError and the like, or an HttpError, for what is none.

    Without ``encode`` it is JSON, whose answers a writer bounds.
    """

    content_type: str
    decode: Callable[[bytearray, Mapping[str, str], Budget], Awaitable[Payload]]
    encode: Callable[[Payload, Budget], Awaitable[Encoded]] | None
    others: tuple[str, ...] = field(default=())
    """Further content types that mean it."""

    @property
    def is_text(self) -> bool:
        return self.encode is None


FORMATS = (
    Format("application/json", json_format.decode, None),
    Format(
        "application/x-npy",
        npy_format.decode,
        npy_format.encode,
        ("application/npy", "application/x-numpy", "application/vnd.numpy.npy"),
    ),
    Format(
        "application/safetensors",
        safetensors_format.decode,
        safetensors_format.encode,
        ("application/x-safetensors", "application/vnd.safetensors"),
    ),
    Format("application/octet-stream", raw_format.decode, raw_format.encode),
)
BY_TYPE = {name: form for form in FORMATS for name in (form.content_type, *form.others)}
ANY = ("*/*", "application/*")


def sent_format(headers: Mapping[str, str]) -> Format:
    """Return the format that a request says its body has; without a content type it is JSON. Refused: another."""
    content_type = headers.get("content-type", "").strip() or FORMATS[0].content_type
    form = BY_TYPE.get(content_type) or BY_TYPE.get(content_type.partition(";")[0].strip().lower())
    if form is None:
        known = ", ".join(each.content_type for each in FORMATS)
        raise HttpError(415, f"content type {content_type!r:.80} is not served; there are {known}")
    return form


def accepted_format(headers: Mapping[str, str], sent: Format) -> Format:
    """Return the format of the answer: the best of the ``Accept`` header, else that of the request."""
    accept = headers.get("accept", "")
    if accept in ("", "*/*"):
        return sent
    preferred = sorted(qualities(accept).items(), key=lambda each: -each[1])
    for name in [name for name, quality in preferred if quality > 0]:
        if name in ANY:
            return sent
        if name in BY_TYPE:
            return BY_TYPE[name]
    known = ", ".join(each.content_type for each in FORMATS)
    raise HttpError(406, f"no answer is of {accept!r:.120}; there are {known}")


async def decode(
    form: Format, body: bytearray, headers: Mapping[str, str], budget: Budget, *, check: Callable[[Payload], None]
) -> Payload:
    """Return the payload of a body, if ``check`` does not raise. A body with a fault is an HttpError with 4xx."""
    with reading(form.content_type):
        payload = await form.decode(body, headers, budget)
        await budget.apart(num_bytes_of(payload), check, payload)
        return payload


async def encode(form: Format, payload: Payload, writer: TensorWriter, budget: Budget) -> Encoded:
    """Return a payload's pieces, and what the head says of them."""
    if form.encode is None:
        return await json_format.encode(payload, writer)
    encoded = await form.encode(payload, budget)
    budget.take(sum(map(len, encoded[0])))
    return encoded


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Refuse, with 400, a body that makes whoever reads it stumble."""
    try:
        yield
    except (ValueError, TypeError, LookupError, RuntimeError, OverflowError, MemoryError) as error:
        raise HttpError(400, f"the body is no {what} that can be read: {error!s:.200}") from None
