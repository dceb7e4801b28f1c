"""How an error travels to the gateway in an answer's place, and becomes an exception there."""

from __future__ import annotations

from typing import Any

from .errors import (
    BadRequestError,
    DeadlineExceededError,
    PoisonedRequestError,
    RequestLostError,
    ServingError,
    StageFailedError,
    StateLostError,
)

__all__ = ["DOUBTFUL", "error_of", "fields_of"]

DOUBTFUL = "doubtful"
"""Marks an error that is not the last word: the request may still be answered by a replica that has it, too."""
CLASSES: dict[str, type[ServingError]] = {
    error.__name__: error
    for error in (
        BadRequestError,
        DeadlineExceededError,
        PoisonedRequestError,
        RequestLostError,
        ServingError,
        StageFailedError,
        StateLostError,
    )
}


def fields_of(error: ServingError) -> dict[str, Any]:
    """Return what ``error_of`` reads, ready for JSON."""
    return {"type": type(error).__name__, "args": list(error.args)}


def error_of(fields: dict[str, Any]) -> ServingError:
    """Return the error; one of a class that is not known here as a ServingError with its text."""
    kind = CLASSES.get(str(fields.get("type")))
    arguments = fields.get("args")
    if kind is None or not isinstance(arguments, list):
        return ServingError(f"an unknown error came back: {fields!r}")
    try:
        return kind(*arguments)
    except TypeError:
        return ServingError(f"a malformed error came back: {fields!r}")
