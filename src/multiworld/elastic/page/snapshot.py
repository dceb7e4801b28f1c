"""What the page shows of a job at one moment. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

__all__ = ["Snapshot"]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """``events``: the last ones; ``last_number``: the number of the last one that there was."""

    status: Mapping[str, Any]
    events: tuple[Mapping[str, Any], ...]
    last_number: int
    counts: Mapping[str, int]

    @cached_property
    def status_json(self) -> str:
        """The status as it is sent; only the readers' threads ask for it."""
        return json.dumps(self.status, separators=(",", ":"))

    def events_since(self, number: int) -> tuple[Mapping[str, Any], ...]:
        """Return those with higher numbers, as far as they are kept."""
        return tuple(event for event in self.events if event["number"] > number)
