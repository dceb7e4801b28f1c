"""What failed last in a member, as it is told to the controller and shown to operators. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Failure"]

LONGEST = 6000  # characters of an error, and of a traceback: each report of a member carries them


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Errors of one kind: of one class, raised at one line. ``at``: Unix time of the last one."""

    kind: str
    error: str
    count: int
    at: float
    traceback: str = ""
    """Of the first one, from where the user's code begins; empty where none of it was involved."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields; of a long error the beginning, of a long traceback the end."""
        return {**asdict(self), "error": self.error[:LONGEST], "traceback": self.traceback[-LONGEST:]}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Failure:
        """Raises KeyError, TypeError or ValueError for what ``to_json`` did not make."""
        return cls(
            kind=str(fields["kind"]),
            error=str(fields["error"]),
            count=int(fields["count"]),
            at=float(fields["at"]),
            traceback=str(fields["traceback"]),
        )
