"""Fields of a profile in JSON: each is taken out with a check, and a wrong one is told with its path. Pure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping

from ..errors import ProfileFileError

MAX = 1e300
"""Above this a number is not meant."""


class Fields:
    """Takes values out of what the JSON said. Each method raises ProfileFileError with the path of the field."""

    def __init__(self, source: str) -> None:
        self._source = source

    def problem(self, path: str, what: str) -> ProfileFileError:
        return ProfileFileError(self._source, path, what)

    def mapping(self, value: object, path: str) -> Mapping[str, object]:
        if not isinstance(value, dict):
            raise self.problem(path, f"expected an object, found {told(value)}")
        return value

    def only(self, value: Mapping[str, object], allowed: frozenset[str], place: str) -> None:
        for name in value:
            if name not in allowed:
                close = difflib.get_close_matches(name, allowed, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(sorted(allowed))}"
                raise self.problem(f"{place}{name}", f"there is no such field: {hint}")

    def text(self, value: Mapping[str, object], name: str, place: str) -> str:
        found = value.get(name)
        if not isinstance(found, str) or not found:
            raise self.problem(f"{place}{name}", f"expected text, found {told(found)}")
        return found

    def count(self, value: Mapping[str, object], name: str, place: str) -> int:
        found = value.get(name)
        if isinstance(found, bool) or not isinstance(found, int) or found < 1:
            raise self.problem(f"{place}{name}", f"expected a whole number, at least 1, found {told(found)}")
        return found

    def number(self, value: Mapping[str, object], name: str, place: str, default: float | None = None) -> float:
        found = value.get(name, default)
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0.0 <= found <= MAX:
            raise self.problem(f"{place}{name}", f"expected a number, at least 0, found {told(found)}")
        return float(found)


def told(value: object) -> str:
    """Return a value for a message."""
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
