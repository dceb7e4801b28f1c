"""How many pipelines of which size, and how many micro-batches each: the least time of a step, exactly.

We search for the least makespan among all times that a pipeline can take. For one makespan, each size has a capacity:
how many micro-batches it computes within that time. A dynamic program over (nodes, number of pipelines) finds the
largest capacity of all nodes; it counts pipelines only up to how many there have to be, or may be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import GlobalBatchTooSmallError, TooFewNodesError
from .arrays import Floats, Ints
from .template_set import TemplateSet

NEVER = -(2**40)  # a capacity: no pipelines use exactly these nodes


@dataclass(frozen=True, kw_only=True)
class Instance:
    """A pipeline of ``size`` nodes that computes ``num_micro_batches`` of each step."""

    size: int
    num_micro_batches: int


@dataclass(frozen=True, kw_only=True)
class Instantiation:
    """``instances``: largest first. ``iteration_s``: of a step, with the exchange of gradients.

    ``tolerates``: any so many nodes may be lost while each layer is left somewhere; ``wanted``: what was asked for.
    ``idle``: nodes that no pipeline has, as sizes do not add up, or as there are fewer micro-batches than pipelines.
    """

    instances: tuple[Instance, ...]
    iteration_s: float
    tolerates: int
    wanted: int
    idle: int = 0

    @property
    def is_degraded(self) -> bool:
        return self.tolerates < self.wanted

    def __str__(self) -> str:
        parts = [
            f"{number} of {each.size} nodes with {each.num_micro_batches} micro-batches"
            for each, number in Counter(self.instances).items()
        ]
        text = f"pipelines: {', '.join(parts)}; {self.iteration_s:.3g} s a step"
        if self.is_degraded:
            text += f"; too few nodes to tolerate {self.wanted} losses: the training survives any {self.tolerates}"
        return f"{text}; idle nodes: {self.idle}" if self.idle else text


def instantiate(
    templates: TemplateSet, num_nodes: int, *, tolerate: int, num_micro_batches: int, exchange_s: float = 0.0
) -> Instantiation:
    """Return the fastest pipelines that use all nodes: at least ``tolerate + 1`` where there are nodes for them.

    With fewer nodes there are as many pipelines as can be, and the result says so. ``num_micro_batches``: of a step of
    all pipelines; each has at least one. ``exchange_s``: of gradients among pipelines, where there are several.
    Raises TooFewNodesError below the smallest template, GlobalBatchTooSmallError.
    """
    if tolerate < 0 or num_micro_batches < 1:
        raise ValueError(
            f"to tolerate {tolerate} losses with {num_micro_batches} micro-batches: expected at least 0 and at least 1"
        )
    if num_nodes < templates.smallest:
        raise TooFewNodesError(templates.profile.model, num_nodes, templates.smallest)
    least = min(tolerate + 1, num_nodes // templates.smallest)
    if num_micro_batches < least:
        raise GlobalBatchTooSmallError(num_micro_batches, least, templates.profile.micro_batch)
    search = _Search.of(templates, num_nodes, least, num_micro_batches)
    used = search.most_used(least)
    chosen = search.best(used, least)
    if exchange_s and least == 1 and len(chosen) > 1 and used in search.sizes:
        alone_s = float(search.curves_s[np.flatnonzero(search.sizes == used)[0], num_micro_batches])
        if alone_s <= search.makespan_s(chosen) + exchange_s:
            chosen = (Instance(size=used, num_micro_batches=num_micro_batches),)
    return Instantiation(
        instances=chosen,
        iteration_s=search.makespan_s(chosen) + (exchange_s if len(chosen) > 1 else 0.0),
        tolerates=min(len(chosen) - 1, tolerate),
        wanted=tolerate,
        idle=num_nodes - used,
    )


def divide_micro_batches(
    templates: TemplateSet, sizes: Sequence[int], num_micro_batches: int
) -> tuple[tuple[int, ...], float]:
    """Return how many each of these pipelines gets so that the slowest takes the least time, and that time.

    Each gets at least one. Raises GlobalBatchTooSmallError if there are fewer than pipelines.
    """
    if num_micro_batches < len(sizes):
        raise GlobalBatchTooSmallError(num_micro_batches, len(sizes), templates.profile.micro_batch)
    return divide_among(_curves_s(templates, sizes, num_micro_batches), num_micro_batches)


def divide_among(curves_s: Floats, num_micro_batches: int) -> tuple[tuple[int, ...], float]:
    """As ``divide_micro_batches``. ``curves_s``: of each pipeline, [num_pipelines, 1 + num_micro_batches]."""

    def is_enough(makespan_s: float) -> bool:
        capacities = _capacities(curves_s, makespan_s)
        return bool(capacities.min() >= 1 and capacities.sum() >= num_micro_batches)

    rows = np.arange(len(curves_s))
    counts = _capacities(curves_s, _least(curves_s, is_enough))
    _reduce(counts, rows, curves_s, num_micro_batches)
    return tuple(counts.tolist()), float(curves_s[rows, counts].max())


@dataclass(frozen=True)
class _Search:
    """``curves_s``: [size, 1 + num_micro_batches]. ``at_most``: how many pipelines are counted.

    ``saturates``: the last count means that many or more; otherwise there may not be more.
    """

    sizes: Ints
    curves_s: Floats
    num_nodes: int
    at_most: int
    saturates: bool

    @classmethod
    def of(cls, templates: TemplateSet, num_nodes: int, least: int, num_micro_batches: int) -> _Search:
        sizes = [each for each in templates.sizes if each <= num_nodes]
        most = num_nodes // templates.smallest
        saturates = most <= num_micro_batches
        curves_s = _curves_s(templates, sizes, num_micro_batches)
        return cls(np.array(sizes), curves_s, num_nodes, least if saturates else num_micro_batches, saturates)

    def most_used(self, least: int) -> int:
        """Return how many nodes so many pipelines can use, at most."""
        reached = self.table(np.ones_like(self.sizes))[:, least:].max(axis=1) >= 0
        return int(np.flatnonzero(reached)[-1])

    def best(self, used: int, least: int) -> tuple[Instance, ...]:
        """Return the instances of the least makespan that use exactly ``used`` nodes."""
        num_micro_batches = self.curves_s.shape[1] - 1

        def is_enough(makespan_s: float) -> bool:
            return bool(self.table(_capacities(self.curves_s, makespan_s))[used, least:].max() >= num_micro_batches)

        capacities = _capacities(self.curves_s, _least(self.curves_s, is_enough))
        rows = self._rows(capacities, used, least)
        counts = capacities[rows]
        _reduce(counts, rows, self.curves_s, num_micro_batches)
        chosen = zip(self.sizes[rows].tolist(), counts.tolist(), strict=True)
        instances = [Instance(size=size, num_micro_batches=count) for size, count in chosen]
        return tuple(sorted(instances, key=lambda each: (-each.size, -each.num_micro_batches)))

    def makespan_s(self, instances: Sequence[Instance]) -> float:
        row_of = {size: row for row, size in enumerate(self.sizes.tolist())}
        return max(float(self.curves_s[row_of[each.size], each.num_micro_batches]) for each in instances)

    def table(self, capacities: Ints) -> Ints:
        """Return the largest capacity of pipelines, [nodes, pipelines], that have exactly so many nodes in all."""
        table = np.full((self.num_nodes + 1, self.at_most + 1), NEVER)
        table[0, 0] = 0
        able = capacities >= 1
        sizes, capacities = self.sizes[able], capacities[able]
        for nodes in range(1, self.num_nodes + 1):
            fitting = int(np.searchsorted(sizes, nodes, side="right"))
            if fitting:
                before = (table[nodes - sizes[:fitting]] + capacities[:fitting, None]).max(axis=0)
                table[nodes, 1:] = before[:-1]
                if self.saturates:
                    table[nodes, -1] = max(before[-2:])
        return table

    def _rows(self, capacities: Ints, nodes: int, least: int) -> Ints:
        """Return the index of each pipeline's size in the largest entry of the table for so many nodes."""
        table = self.table(capacities)
        count = least + int(table[nodes, least:].argmax())
        rows = []
        while nodes:
            row, count = next(
                (row, before)
                for row, size in enumerate(self.sizes.tolist())
                if size <= nodes and capacities[row] >= 1
                for before in ((count - 1, count) if self.saturates and count == self.at_most else (count - 1,))
                if before >= 0 and table[nodes - size, before] + capacities[row] == table[nodes, count]
            )
            nodes -= int(self.sizes[row])
            rows.append(row)
        return np.array(rows)


def _curves_s(templates: TemplateSet, sizes: Sequence[int], num_micro_batches: int) -> Floats:
    return np.array([templates.iterations_s(each, num_micro_batches)[: num_micro_batches + 1] for each in sizes])


def _capacities(curves_s: Floats, makespan_s: float) -> Ints:
    """Return how many micro-batches each row's pipeline computes within that time."""
    capacities: Ints = (curves_s[:, 1:] <= makespan_s).sum(axis=1)
    return capacities


def _least(curves_s: Floats, is_enough: Callable[[float], bool]) -> float:
    """Return the least time of ``curves_s`` that is enough; the largest is."""
    times_s = np.unique(curves_s[:, 1:])
    low, high = 0, len(times_s) - 1
    while low < high:
        middle = (low + high) // 2
        if is_enough(float(times_s[middle])):
            high = middle
        else:
            low = middle + 1
    return float(times_s[low])


def _reduce(counts: Ints, rows: Ints, curves_s: Floats, num_micro_batches: int) -> None:
    """Take micro-batches from the slowest pipelines until there are no more than the step has."""
    excess = int(counts.sum()) - num_micro_batches
    while excess > 0:
        slowest = int(np.where(counts > 1, curves_s[rows, counts], -np.inf).argmax())
        counts[slowest] -= 1
        excess -= 1
