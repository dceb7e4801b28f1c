"""Decide how parameters lie in flat buckets, each of which is reduced as soon as its gradients are there. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

DEFAULT_BUCKET_BYTES = 4 << 20
FIRST_BUCKET_BYTES = 1 << 20  # the first one is ready early, so that the reduction begins early


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Where one parameter lies: elements ``begin`` to ``begin + num_elements`` of its bucket."""

    parameter: int
    begin: int
    num_elements: int


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """``slots`` lie behind each other without gaps. ``kind``: dtype and device, the same for all of them."""

    kind: Hashable
    slots: tuple[Slot, ...]
    num_elements: int


def lay_out(
    parameters: Sequence[tuple[int, int, Hashable]],
    *,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    first_bucket_bytes: int = FIRST_BUCKET_BYTES,
) -> list[Bucket]:
    """Return the buckets of parameters ``(num_elements, element_bytes, kind)``, in the order of their reduction.

    It begins with the last parameters, whose gradients come first in backward. A parameter larger than a bucket has one
    of its own.
    """
    open_slots: dict[Hashable, list[Slot]] = {}
    sizes: dict[Hashable, int] = {}
    buckets: list[Bucket] = []

    def close(kind: Hashable) -> None:
        slots = tuple(open_slots.pop(kind))
        buckets.append(Bucket(kind=kind, slots=slots, num_elements=sizes.pop(kind)))

    for index in range(len(parameters) - 1, -1, -1):
        num_elements, element_bytes, kind = parameters[index]
        limit = bucket_bytes if buckets else first_bucket_bytes
        if kind in open_slots and (sizes[kind] + num_elements) * element_bytes > limit:
            close(kind)
        begin = sizes.setdefault(kind, 0)
        open_slots.setdefault(kind, []).append(Slot(parameter=index, begin=begin, num_elements=num_elements))
        sizes[kind] = begin + num_elements
    for kind in list(open_slots):
        close(kind)
    return buckets
