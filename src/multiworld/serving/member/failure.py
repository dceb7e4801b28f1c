"""What failed last in a member, as it is told to the controller and shown to operators. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

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

    def shortened(self) -> Failure:
        """Return the beginning of a long error, and the end of a long traceback."""
        return replace(self, error=self.error[:LONGEST], traceback=self.traceback[-LONGEST:])
