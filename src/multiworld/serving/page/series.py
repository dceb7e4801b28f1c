"""Turn counts that only grow into rates, and keep the last minutes of what a page draws as curves. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

WINDOW_S = 2.5  # members tell their counts once a second, a little more or less
RECENT_S = 60.0  # for so long a failure concerns an operator
STALE_S = 1.3  # counts that have not changed for so long have not changed
MAX_POINTS = 300


class Rates:
    """How fast the counts of each process grow, over the last ``window_s``, and by how much in the last minute.

    A key names one process: whatever replaces it counts from nothing, under another key. Counts under the same key that
    have shrunk are those of a process that took the place of another; what came before is forgotten.
    """

    def __init__(self, window_s: float = WINDOW_S, recent_s: float = RECENT_S) -> None:
        self._window_s, self._recent_s = window_s, max(window_s, recent_s)
        self._samples: dict[Hashable, deque[tuple[float, dict[str, float]]]] = {}

    def observe(self, key: Hashable, counts: Mapping[str, float], now: float) -> None:
        """Take in what a process counted until ``now``; times of one key must not go backwards."""
        samples = self._samples.setdefault(key, deque())
        counts = dict(counts)
        if samples:
            last_at, last = samples[-1]
            if any(counts.get(name, 0.0) < value for name, value in last.items()):
                samples.clear()
            elif now <= last_at or (counts == last and now - last_at < STALE_S):
                return  # the same word, heard again
        samples.append((now, counts))
        while len(samples) > 2 and samples[1][0] <= now - self._recent_s:
            samples.popleft()

    def keep_only(self, keys: Iterable[Hashable]) -> None:
        """Forget all other processes."""
        kept = set(keys)
        self._samples = {key: samples for key, samples in self._samples.items() if key in kept}

    def rate(self, key: Hashable, name: str) -> float | None:
        """Return by how much a count grows in a second; None while that is not known."""
        samples = self._samples.get(key)
        if samples is None or len(samples) < 2:
            return None
        last_at, last = samples[-1]
        begin = last_at - self._window_s
        first_at, first = next((sample for sample in reversed(samples) if sample[0] <= begin), samples[0])
        return max(0.0, last.get(name, 0.0) - first.get(name, 0.0)) / (last_at - first_at)

    def recent(self, key: Hashable, name: str) -> int:
        """Return by how much a count grew within the last minute, as far as it was watched."""
        samples = self._samples.get(key)
        return 0 if samples is None else int(samples[-1][1].get(name, 0.0) - samples[0][1].get(name, 0.0))


@dataclass(frozen=True, kw_only=True)
class Point:
    """One second of the whole deployment; None: nothing is known of it. ``at``: Unix time; rates in requests/s."""

    at: float
    rate: float | None = None
    bad_rate: float | None = None
    """Of those that failed or were refused."""
    open: int | None = None
    p50_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None


class Series:
    """The last ``MAX_POINTS`` points, each with a number that grows by one."""

    def __init__(self, max_points: int = MAX_POINTS) -> None:
        self._points: deque[Point] = deque(maxlen=max_points)
        self.num_seen = 0

    def add(self, point: Point) -> None:
        self._points.append(point)
        self.num_seen += 1

    def since(self, number: int) -> list[Point]:
        """Return what came after the first ``number`` points, as far as it is kept."""
        new = min(max(0, self.num_seen - number), len(self._points))
        return list(self._points)[len(self._points) - new :]
