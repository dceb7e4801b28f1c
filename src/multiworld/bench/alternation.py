"""Take samples of ours and of a reference in turn, so that a disturbance of the machine disturbs both. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["ASYNCIO", "BLOCKING", "RAW", "alternate", "lane_names"]

T = TypeVar("T")

RAW = "raw"
ASYNCIO, BLOCKING = "asyncio", "blocking"


def lane_names(backends: Sequence[str]) -> list[str]:
    """Return the names of a world's two ways to move tensors, for each backend."""
    return [f"{backend}, {api}" for backend in backends for api in (ASYNCIO, BLOCKING)]


def alternate(
    sample: Callable[[str], T], lanes: Sequence[str], num_pairs: int, *, reference: str = RAW
) -> dict[str, list[tuple[T, T]]]:
    """Return samples of each lane, each with one of the reference that was taken right before it."""
    pairs: dict[str, list[tuple[T, T]]] = {lane: [] for lane in lanes}
    for number in range(num_pairs + 1):
        for lane, samples in pairs.items():
            theirs = sample(reference)
            ours = sample(lane)
            if number > 0:  # the first round touches new memory
                samples.append((ours, theirs))
    return pairs
