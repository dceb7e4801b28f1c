"""Whether pipelines of some sizes can use every node, however many are left."""

from __future__ import annotations

from collections.abc import Collection


def covers(sizes: Collection[int], smallest: int, tolerate: int, up_to: int) -> bool:
    """Return whether each count of nodes from ``smallest`` to ``up_to`` is a sum of sizes, and of enough of them.

    Enough: ``tolerate + 1`` pipelines where there are ``(tolerate + 1) * smallest`` nodes, and as many as can be below.
    """
    return not uncovered(sizes, smallest, tolerate, up_to)


def uncovered(sizes: Collection[int], smallest: int, tolerate: int, up_to: int) -> tuple[int, ...]:
    """Return the counts of nodes for which ``covers`` does not hold.

    Sizes ``smallest`` to ``2 * smallest - 1`` leave none: ``q * smallest + r`` nodes are ``q - 1`` pipelines of
    ``smallest`` nodes and one of ``smallest + r``, where ``q`` is as large as can be and ``r < smallest``.
    """
    most = most_pipelines(sizes, up_to)
    return tuple(
        count
        for count in range(max(1, smallest), up_to + 1)
        if most[count] < min(tolerate + 1, count // max(1, smallest))
    )


def most_pipelines(sizes: Collection[int], up_to: int) -> list[int]:
    """Return for each count of nodes from 0 how many pipelines use exactly these, at most; -1 where none do."""
    most = [0] + [-1] * up_to
    for count in range(1, up_to + 1):
        before = [most[count - size] for size in sizes if size <= count]
        most[count] = max((each + 1 for each in before if each >= 0), default=-1)
    return most
