"""What of an unfinished step is in the members' sums, and what is left to do of it, as members write it down. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

Sums = Mapping[int, Collection[int]]
"""By layer, the micro-batches that one member's sums hold. Layers without any may be missing."""


class Span(NamedTuple):
    """The micro-batches ``first`` to ``end - 1``."""

    first: int
    end: int


@dataclass(frozen=True, kw_only=True)
class LayerSums:
    """The sums of the layers ``first`` to ``end - 1`` hold the gradients of the same micro-batches."""

    first: int
    end: int
    micro_batches: tuple[Span, ...]


@dataclass(frozen=True, kw_only=True)
class PartialStep:
    """What one member has of a step. ``begun``: the micro-batches whose forward it has begun."""

    sums: tuple[LayerSums, ...] = ()
    begun: tuple[Span, ...] = ()


NOTHING = PartialStep()


@dataclass(frozen=True, kw_only=True)
class HandedSums:
    """``source`` gives sums of layers that it does not keep to ``destination``, which adds them to its own."""

    source: str
    destination: str
    sums: tuple[LayerSums, ...]


@dataclass(frozen=True, kw_only=True)
class Remaining:
    """What is left to do of the step with which a generation begins: part of its record.

    ``kept``: what each member keeps of its own sums, by id. What it neither keeps nor hands over is void. ``computed``:
    for each pipeline, the micro-batches that it computes in this step. Who computes one adds it to the sum of a layer
    only if no member keeps it there. ``num_redone``: how many of them had been begun before.
    """

    kept: Mapping[str, tuple[LayerSums, ...]] = field(default_factory=dict)
    handed: tuple[HandedSums, ...] = ()
    computed: tuple[tuple[Span, ...], ...] = ()
    num_redone: int = 0


def spans_of(micro_batches: Iterable[int]) -> tuple[Span, ...]:
    """Return them as spans, in their order."""
    spans: list[Span] = []
    for each in sorted(micro_batches):
        if spans and spans[-1].end == each:
            spans[-1] = Span(spans[-1].first, each + 1)
        else:
            spans.append(Span(each, each + 1))
    return tuple(spans)


def numbers_of(spans: Iterable[Span]) -> tuple[int, ...]:
    return tuple(number for span in spans for number in range(span.first, span.end))


def written(sums: Sums) -> tuple[LayerSums, ...]:
    """Return one entry for each run of layers whose sums hold the same."""
    entries: list[LayerSums] = []
    for layer in sorted(sums):
        if not sums[layer]:
            continue
        spans = spans_of(sums[layer])
        last = entries[-1] if entries else None
        if last is not None and last.end == layer and last.micro_batches == spans:
            entries[-1] = LayerSums(first=last.first, end=layer + 1, micro_batches=spans)
        else:
            entries.append(LayerSums(first=layer, end=layer + 1, micro_batches=spans))
    return tuple(entries)


def read(entries: Iterable[LayerSums]) -> dict[int, frozenset[int]]:
    """Return what ``written`` was given."""
    return {
        layer: frozenset(numbers_of(each.micro_batches)) for each in entries for layer in range(each.first, each.end)
    }
