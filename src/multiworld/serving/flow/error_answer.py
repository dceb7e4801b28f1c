"""An error that travels in the place of an answer."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ...errors import MessageError
from ...wire.messages import Json, from_json, to_json
from .. import errors
from ..errors import ServingError

CLASSES: dict[str, type[ServingError]] = {name: getattr(errors, name) for name in errors.__all__}
"""What a replica may answer with: the user's code may raise any of them."""


@dataclass(frozen=True, kw_only=True)
class ErrorAnswer:
    """The class of an error of serving, and its arguments.

    ``doubtful``: it is not the last word: the request may still be answered by a replica that has it, too.
    """

    type: str = ""
    args: tuple[Json, ...] | None = None
    doubtful: bool = False

    @classmethod
    def of(cls, error: ServingError, *, doubtful: bool = False) -> ErrorAnswer:
        return cls(type=type(error).__name__, args=error.args, doubtful=doubtful)

    def encode(self) -> bytes:
        """Return JSON. Raises TypeError or ValueError if the user's code made the error of something else."""
        return json.dumps(to_json(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> ErrorAnswer:
        """Return what ``encode`` was given; of anything else a ServingError that says so."""
        try:
            return from_json(cls, json.loads(data))
        except (MessageError, ValueError) as error:
            return cls.of(ServingError(f"a malformed error came back: {error}"))

    def error(self) -> ServingError:
        """Return the error; one of a class that is not known here as a ServingError with its text."""
        kind = CLASSES.get(self.type)
        if kind is None or self.args is None:
            return ServingError(f"an unknown error came back: {self!r}")
        try:
            error = kind(*self.args)
            str(error)  # the user's code may have made it, of anything
        except (TypeError, ValueError):
            return ServingError(f"a malformed error came back: {self!r}")
        return error
