"""Decide how a training grows: when layers go to newcomers beside the steps, and what of them is sent when. Pure.

Members that lost nobody can go on as they are. So the generation that takes newcomers in has the present assignment, in
which these have nothing to do, and a coming one. Its moves are carried out beside the steps, a few layers in each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from .assignment import Assignment, LayerMove

PREFETCH = "prefetch"
"""The policy of an assignment that stays as it was while members get layers."""

SMALL_BYTES = 16 << 20
"""What one member sends or gets in a pause: 0.15 s at 1 Gb/s, and a generation less than beside the steps."""

SHARE = 0.5
"""Of a step, in which a source sends: its receivers check what has come before the step ends."""

MAX_MISSED = 16
"""Steps whose gradients a receiver keeps for layers that are late; then all wait for these layers."""


def kept(before: Assignment, members: Sequence[str], held: Mapping[str, frozenset[int]]) -> Assignment | None:
    """Return the assignment for members that compute what they did before; newcomers among them wait.

    ``held``: which layers members have with their state. None: somebody is lost that had something to compute, or has
    not got its layers.
    """
    if any(not held.get(each, frozenset()).issuperset(before.layers_of(each)) for each in before.members):
        return None
    waiting = tuple(each for each in members if each not in before.members)
    return replace(before, moves=(), policy=PREFETCH, idle=waiting)


def kept_layers(
    present: Assignment, coming: Mapping[str, frozenset[int]], held: Mapping[str, frozenset[int]]
) -> dict[str, frozenset[int]]:
    """Return the layers that members keep and can send beside the steps: they drop what no assignment gives them.

    ``coming``: by member, what the coming assignment gives it.
    """
    return {
        member: layers & coming.get(member, frozenset()).union(present.layers_of(member))
        for member, layers in held.items()
    }


def is_prefetched(coming: Assignment, members: Sequence[str], held: Mapping[str, frozenset[int]]) -> bool:
    """Return whether these members are those of the coming assignment, and have what it gives them."""
    return {*members} == {*coming.members, *coming.idle} and all(
        held.get(each, frozenset()).issuperset(coming.layers_of(each)) for each in coming.members
    )


class Deliveries:
    """Which moves of a coming assignment were begun, as all members hear it in the facts of each step."""

    def __init__(self, moves: Sequence[LayerMove], members: Sequence[str]) -> None:
        """``members``: in the order of their facts."""
        self._of = {member: [each for each in moves if each.source == member] for member in members}
        self._num_begun = dict.fromkeys(members, 0)

    def left(self, source: str) -> list[LayerMove]:
        """Return what a source has not begun to send, in the order in which it does so."""
        return self._of[source][self._num_begun[source] :]

    def hear(self, sent: Sequence[int]) -> list[LayerMove]:
        """Return what was begun since the facts before. ``sent``: of each member, how many moves it has begun."""
        begun = []
        for (member, moves), number in zip(self._of.items(), sent, strict=True):
            begun += moves[self._num_begun[member] : number]
            self._num_begun[member] = number
        return begun


class Pace:
    """How much a source sends in a step: so much that it ends before the step does, as far as one can tell.

    Nothing is known before the first time; then the least is sent that can be. ``now``: seconds of any clock.
    """

    def __init__(self) -> None:
        self._began: float | None = None
        self._step_s = float("inf")
        """The shortest step so far: one that waited for what was sent must not let more be sent."""
        self._bytes_per_s = 0.0

    def step_begins(self, now: float) -> None:
        if self._began is not None:
            self._step_s = min(self._step_s, now - self._began)
        self._began = now

    def sent(self, size_bytes: int, took_s: float) -> None:
        self._bytes_per_s = size_bytes / max(took_s, 1e-6)

    @property
    def most_bytes(self) -> float:
        return SHARE * self._bytes_per_s * self._step_s if self._bytes_per_s else 0.0
