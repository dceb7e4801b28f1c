"""What is wrong with a configuration file: all of it at once, each with its line and its place. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from ..errors import DeploymentError

Path = tuple[str | int, ...]
"""Where in a file something stands: keys and indices, from the outside in."""


class ConfigError(DeploymentError):
    """A configuration cannot be used. Fields: ``source`` (the file), ``problems`` (one sentence each)."""

    def __init__(self, source: str, problems: Iterable[str]) -> None:
        self.source, self.problems = source, tuple(problems)
        super().__init__("\n".join(f"{source}:{problem}" for problem in self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, tuple[str, ...]]]:
        return type(self), (self.source, self.problems)


class Problems:
    """Collects what is wrong with one file."""

    def __init__(self, source: str, lines: Mapping[Path, int]) -> None:
        self._source, self._lines = source, lines
        self._found: list[tuple[int, str]] = []

    def add(self, path: Path, problem: str) -> None:
        line = self._line(path)
        place = f"{shown(path)}: " if path else ""
        self._found.append((line, f"{line}: {place}{problem}" if line else f" {place}{problem}"))

    def raise_any(self) -> None:
        """Raise ConfigError if anything was added, in the order of the file."""
        if self._found:
            raise ConfigError(self._source, [text for _, text in sorted(self._found, key=lambda found: found[0])])

    def _line(self, path: Path) -> int:
        """Return the line of the innermost part of a path whose line is known; 0 if none is."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 0)


def shown(path: Path) -> str:
    """Return a path as one writes it: ``stages[1].batch.max_size``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """Return the nearest allowed name as a question, or all of them."""
    names = list(allowed)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(sorted(names))}"
