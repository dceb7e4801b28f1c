"""Decide what each rank gives to a collective and must hold after calls of it, as factors of known data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .known_data import LARGEST

__all__ = ["ROOT", "Content", "given", "gotten"]

ROOT = 0
FIRST = 2.0**-120  # of float32's smallest: an all_reduce in place grows with each call
GREATEST = 2.0**127


@dataclass(frozen=True)
class Content:
    """Factors of the rank's own tensor and of its list, one per rank. None and empty: not given, or not looked at."""

    mine: float | None = None
    parts: Sequence[float] = ()


def given(kind: str, rank: int, world_size: int) -> Content:
    """Return what a rank gives: in its own tensor and in its list of inputs."""
    number, ranks = rank + 1, range(world_size)
    if kind == "all_reduce":
        return Content(FIRST * number)
    if kind in ("reduce", "all_gather", "gather"):
        return Content(number)
    if kind == "broadcast":
        return Content(1 if rank == ROOT else None)
    if kind == "scatter":
        return Content(parts=[other + 1 for other in ranks] if rank == ROOT else [])
    if kind == "reduce_scatter":
        return Content(parts=[number * (other + 1) for other in ranks])
    if kind == "all_to_all":
        return Content(parts=[rank * world_size + other + 1 for other in ranks])
    return Content()


def gotten(kind: str, rank: int, world_size: int, count: int) -> Content:
    """Return what a rank holds after ``count`` calls: in its own tensor and in its list of outputs.

    Each all_reduce and reduce in place adds to what the one before it left, so the content counts them.
    """
    number, ranks = rank + 1, range(world_size)
    total = world_size * (world_size + 1) // 2
    if kind == "all_reduce":
        return Content(_grown(world_size, count, FIRST * total))
    if kind == "reduce":
        return Content(1 + count * (total - 1) if rank == ROOT else None)
    if kind == "broadcast":
        return Content(1)
    if kind == "scatter":
        return Content(number)
    if kind == "reduce_scatter":
        return Content(total * number)
    if kind == "all_gather" or (kind == "gather" and rank == ROOT):
        return Content(parts=[other + 1 for other in ranks])
    if kind == "all_to_all":
        return Content(parts=[other * world_size + number for other in ranks])
    return Content()


def _grown(world_size: int, count: int, first: float) -> float:
    grown = first * float(world_size) ** (count - 1)
    if grown * LARGEST >= GREATEST:
        raise ValueError(f"{count} calls of all_reduce on {world_size} ranks exceed float32: {grown:g} · {LARGEST}")
    return grown
