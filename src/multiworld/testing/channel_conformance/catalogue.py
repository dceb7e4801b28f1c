"""What a check is: one guarantee of a channel, named, with what members or the examiner do to see whether it holds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .examiner import Examiner
    from .stage import Stage
    from .subject import Effort

Part = Callable[["Stage"], Awaitable[Any]]
Script = Callable[["Examiner"], None]
PAIR, THREE, SEVERAL, ANY_SIZE = (2,), (3,), (2, 3), (1, 2, 3, 4, 5, 6, 7, 8)


class ConformanceError(AssertionError):
    """A channel broke a promise; the message says which, and what it did instead."""


@dataclass(frozen=True)
class Check:
    """One guarantee. Its name states it in short, ``promise`` in one sentence.

    Either each member of a world plays ``part``, in worlds of each of ``sizes``; or the examiner directs the members by
    ``script``, which needs at least ``num_members`` and kills ``num_kills`` of them.
    """

    name: str
    promise: str
    sizes: Sequence[int] = ()
    part: Part | None = None
    num_members: int = 1
    script: Script | None = None
    num_kills: Callable[[Effort], int] = lambda _: 0


def by_members(*, sizes: Sequence[int]) -> Callable[[Part], Check]:
    """Make a check of the coroutine function that every member runs."""

    def make(part: Part) -> Check:
        return _check(part, sizes=sizes, part=part, num_members=min(sizes))

    return make


def by_examiner(*, num_members: int, num_kills: Callable[[Effort], int] = lambda _: 0) -> Callable[[Script], Check]:
    """Make a check of the function that tells members what to do, and faults when to happen."""

    def make(script: Script) -> Check:
        return _check(script, num_members=num_members, script=script, num_kills=num_kills)

    return make


def _check(function: Any, **fields: Any) -> Check:
    assert function.__doc__ is not None, f"{function.__name__} has no promise"
    return Check(function.__name__, " ".join(function.__doc__.split()), **fields)
