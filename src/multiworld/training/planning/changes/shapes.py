"""Which sizes pipelines get if most of them stay as they are: Oobleck's borrow and merge (Jang et al. 2023, 5.1)."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def borrowed(left: Sequence[int], wanted: Sequence[int], num_joined: int, sizes: Collection[int]) -> list[int] | None:
    """Return the sizes after each pipeline that has too few nodes got some of the largest ones; None if that fails.

    ``left``: how many nodes each pipeline has left of ``wanted``; ``sizes``: those that there are templates of.
    Joined nodes fill gaps first, then the smallest pipelines.
    """
    now = _joined(list(left), list(wanted), num_joined)
    now = [each for each in now if each]
    for index in range(len(now)):
        while now[index] not in sizes:
            givers = [each for each in range(len(now)) if each != index and now[each] - 1 in sizes]
            if now[index] > max(sizes) or not givers:
                return None
            now[max(givers, key=lambda each: now[each])] -= 1
            now[index] += 1
    return now


def merged(left: Sequence[int], wanted: Sequence[int], num_joined: int, sizes: Collection[int]) -> list[int] | None:
    """Return the sizes after pipelines with too few nodes became one, or parts of the smallest ones; None if not."""
    now = _joined(list(left), list(wanted), num_joined)
    whole = sorted(each for each in now if each in sizes)
    broken = sum(each for each in now if each not in sizes)
    if broken in sizes:
        return [*whole, broken]
    for index, each in enumerate(whole):
        if broken and each + broken in sizes:
            return [*whole[:index], each + broken, *whole[index + 1 :]]
    while broken and whole:
        growing = [each for each in range(len(whole)) if whole[each] + 1 in sizes]
        if not growing:
            return None
        whole[growing[0]] += 1
        broken -= 1
        whole.sort()
    return None if broken or not whole else whole


def _joined(left: list[int], wanted: list[int], num_joined: int) -> list[int]:
    """Add joined nodes: where one is missing, then where there are fewest."""
    for _ in range(num_joined):
        gaps = [each for each in range(len(left)) if 0 < left[each] < wanted[each]]
        if gaps:
            left[min(gaps, key=lambda each: (wanted[each] - left[each], each))] += 1
        else:
            left[min((each for each in range(len(left)) if left[each]), key=lambda each: left[each])] += 1
    return left
