"""Which replica gets the next request: the policies, over what a sender knows of each replica. Pure.

Scanning all replicas for the least ``(in flight + 1) x latency`` is the default: with one of three replicas four times
slower it keeps the p99 near that of an oracle, where power of two and round robin do not (issue 5).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Final, Protocol

MIN_LATENCY_S: Final = 1e-6
MASK: Final = (1 << 64) - 1


class Candidate(Protocol):
    """What a policy may look at."""

    name: str
    latency_s: float
    """How long a request took there lately for each that was there with it, exponentially weighted.

    The whole latency would count the queue twice: p99 was 1.15 times higher with one of three replicas slower.
    """

    @property
    def in_flight(self) -> int: ...


class Policy(Protocol):
    """Chooses among candidates, of which there is at least one. ``route``: what stickiness goes by; may be empty."""

    def choose(self, candidates: Sequence[Candidate], route: bytes) -> Candidate: ...


class ShortestQueue:
    """The replica that will be done soonest, as far as its latency tells."""

    def choose(self, candidates: Sequence[Candidate], route: bytes) -> Candidate:
        return min(candidates, key=_expected_s)


class RoundRobin:
    """One after the other, by name."""

    def __init__(self) -> None:
        self._last = ""

    def choose(self, candidates: Sequence[Candidate], route: bytes) -> Candidate:
        chosen = min(candidates, key=lambda candidate: (candidate.name <= self._last, candidate.name))
        self._last = chosen.name
        return chosen


class Random:
    """Any. ``draw(n)`` returns a number below n."""

    def __init__(self, draw: Callable[[int], int]) -> None:
        self._draw = draw

    def choose(self, candidates: Sequence[Candidate], route: bytes) -> Candidate:
        return candidates[self._draw(len(candidates))]


class PowerOfTwo:
    """The better of two at random (Mitzenmacher, 2001)."""

    def __init__(self, draw: Callable[[int], int]) -> None:
        self._draw = draw

    def choose(self, candidates: Sequence[Candidate], route: bytes) -> Candidate:
        if len(candidates) == 1:
            return candidates[0]
        first = self._draw(len(candidates))
        second = self._draw(len(candidates) - 1)
        pair = candidates[first], candidates[second + (second >= first)]
        return min(pair, key=_expected_s)


class Sticky:
    """The same replica for the same key while it is there; without a key the shortest queue."""

    def __init__(self) -> None:
        self._otherwise = ShortestQueue()

    def choose(self, candidates: Sequence[Candidate], route: bytes) -> Candidate:
        return rendezvous(candidates, route) if route else self._otherwise.choose(candidates, route)


def rendezvous(candidates: Sequence[Candidate], route: bytes) -> Candidate:
    """Return the candidate that every process would choose for this key (highest random weight; Thaler, 1998).

    One that goes moves only its own keys.
    """
    key = zlib.crc32(route) << 32
    return max(candidates, key=lambda candidate: (_mixed(key | zlib.crc32(candidate.name.encode())), candidate.name))


def _mixed(value: int) -> int:
    """Scatter 64 bits (the finalizer of SplitMix64; Steele et al., 2014).

    A CRC alone is linear: between two names of one length it would prefer the same one for half of all keys or for all.
    """
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def _expected_s(candidate: Candidate) -> float:
    return (candidate.in_flight + 1) * max(candidate.latency_s, MIN_LATENCY_S)


POLICIES: Final = ("shortest-queue", "round-robin", "random", "power-of-two", "sticky")


def make_policy(name: str, draw: Callable[[int], int]) -> Policy:
    """Return a policy of its own for one sender. ``draw(n)``: a random number below n. Raises ValueError."""
    if name == "shortest-queue":
        return ShortestQueue()
    if name == "round-robin":
        return RoundRobin()
    if name == "random":
        return Random(draw)
    if name == "power-of-two":
        return PowerOfTwo(draw)
    if name == "sticky":
        return Sticky()
    raise ValueError(f"unknown routing policy {name!r}; there are {', '.join(POLICIES)}")
