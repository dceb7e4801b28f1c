"""What each member has to get from whom, so that no source has much more to send than the others."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ..arrays import Floats
from ..plan import LOST, Move, Pipeline

SMALLEST_PART = 1 / 32  # of a layer: a smaller part is not worth a transfer of its own
WHOLE = 0.5  # a cut is rounded to the nearer end of its layer
ALIGNED_BYTES = 64  # where a layer is cut
ROUNDS = 50

Demand = tuple[str, int]  # destination, layer


def moves_to(
    pipelines: Sequence[Pipeline],
    held: Mapping[str, frozenset[int]],
    layer_bytes: Sequence[int],
    *,
    divide: bool = True,
) -> tuple[Move, ...]:
    """Return the moves after which each member has its layers. ``held``: what members that are alive have.

    ``divide``: a layer may come in parts from several sources. Raises ValueError for a layer that nobody has.
    """
    groups: dict[tuple[str, ...], list[Demand]] = defaultdict(list)
    for destination, layer in _demands(pipelines, held):
        sources = tuple(sorted(member for member, layers in held.items() if layer in layers))
        if not sources:
            raise ValueError(f"no member that is alive has layer {layer}")
        groups[sources].append((destination, layer))
    shares = _shares(list(groups), [sum(layer_bytes[layer] for _, layer in each) for each in groups.values()])
    moves: list[Move] = []
    for (sources, demands), share_bytes in zip(groups.items(), shares, strict=True):
        moves += _cut(sources, demands, share_bytes, layer_bytes, SMALLEST_PART if divide else WHOLE)
    return tuple(sorted(moves, key=lambda each: (each.destination, each.layer, each.offset_bytes)))


def busiest_bytes(moves: Sequence[Move]) -> int:
    """Return the most bytes that one member has to send, or to receive."""
    totals: dict[tuple[str, str], int] = defaultdict(int)
    for each in moves:
        totals["send", each.source] += each.size_bytes
        totals["receive", each.destination] += each.size_bytes
    return max(totals.values(), default=0)


def _demands(pipelines: Sequence[Pipeline], held: Mapping[str, frozenset[int]]) -> Iterator[Demand]:
    for pipeline in pipelines:
        for stage in pipeline.template.stages:
            member = pipeline.members[stage.node]
            if member == LOST:
                continue
            for layer in range(stage.first, stage.end):
                if layer not in held.get(member, frozenset()):
                    yield member, layer


def _shares(groups: Sequence[tuple[str, ...]], totals_bytes: Sequence[int]) -> list[Floats]:
    """Return what each source of each group sends. ``groups``: the members that have the same layers.

    Fills up the sources of one group after the other, like water, around what they send for the other groups: each
    fill lowers the sum of squares of the loads, whose minimum has the least possible busiest source, too.
    """
    index_of = {member: index for index, member in enumerate(sorted({each for group in groups for each in group}))}
    columns = [np.array([index_of[each] for each in group]) for group in groups]
    loads = np.zeros(len(index_of))
    shares = [np.zeros(len(group)) for group in groups]
    for _ in range(ROUNDS):
        moved = 0.0
        for number, (column, total) in enumerate(zip(columns, totals_bytes, strict=True)):
            loads[column] -= shares[number]
            filled = _filled(loads[column], float(total))
            moved = max(moved, float(np.abs(filled - shares[number]).max()) / max(1, total))
            shares[number] = filled
            loads[column] += filled
        if moved < 1e-3:
            break
    return shares


def _filled(loads: Floats, total: float) -> Floats:
    """Return how ``total`` is divided so that the least loaded end up equal."""
    ascending = np.sort(loads)
    levels = (np.cumsum(ascending) + total) / np.arange(1, len(loads) + 1)
    level = levels[np.flatnonzero(levels >= ascending)[-1]]
    filled: Floats = np.maximum(level - loads, 0.0)
    return filled


def _cut(
    sources: Sequence[str],
    demands: Sequence[Demand],
    share_bytes: Floats,
    layer_bytes: Sequence[int],
    smallest_part: float,
) -> Iterator[Move]:
    """Lay the demands end to end, and let each source send one piece of that: at most ``len(sources) - 1`` are cut."""
    ends = [0, *np.cumsum([layer_bytes[layer] for _, layer in demands]).tolist()]
    cuts = [_rounded(float(each), ends, smallest_part) for each in np.cumsum(share_bytes)[:-1]]
    pieces = list(zip(sources, [0, *cuts], [*cuts, ends[-1]], strict=True))
    for (destination, layer), first, last in zip(demands, ends[:-1], ends[1:], strict=True):
        sent = [
            (source, max(begin, first), min(end, last))
            for source, begin, end in pieces
            if max(begin, first) < min(end, last)
        ]
        for source, begin, end in sent or [(sources[0], first, last)]:  # also what has no bytes comes from somewhere
            yield Move(
                layer=layer,
                source=source,
                destination=destination,
                size_bytes=end - begin,
                layer_bytes=last - first,
                offset_bytes=begin - first,
            )


def _rounded(cut: float, ends: Sequence[int], smallest_part: float) -> int:
    """Return the cut at an end of a layer if it is near, else where the layer may be cut."""
    index = min(bisect_right(ends, cut), len(ends) - 1)
    first, last = ends[index - 1], ends[index]
    if cut - first < smallest_part * (last - first):
        return first
    if last - cut <= smallest_part * (last - first):
        return last
    return first + int(cut - first) // ALIGNED_BYTES * ALIGNED_BYTES
