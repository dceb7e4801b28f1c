"""Inputs for collectives, which the kit has, and tunings that send them in every way that the algorithms know."""

from __future__ import annotations

from dataclasses import replace

from multiworld.channel.collectives import Tuning
from multiworld.testing.samples import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    OPS,
    allows,
    bits,
    premultiplied_sum,
    random_tensor,
    reduced,
    rough_tensor,
)
from multiworld.testing.samples import REDUCIBLE as DTYPES

__all__ = [
    "ALWAYS_LARGE",
    "ALWAYS_SMALL",
    "COMPLEX",
    "DTYPES",
    "FLOATS",
    "INTEGERS",
    "NEVER_FLAT",
    "OPS",
    "TINY",
    "allows",
    "bits",
    "premultiplied_sum",
    "random_tensor",
    "reduced",
    "rough_tensor",
]

TINY = Tuning(chunk_bytes=64, max_chunks=5, window=2)
"""Cuts what the tests send into several chunks."""
NEVER = 1 << 60
NEVER_FLAT = Tuning(
    flat_reduce_bytes=NEVER, flat_broadcast_bytes=NEVER, flat_gather_bytes=NEVER, flat_scatter_bytes=NEVER
)
ALWAYS_SMALL = replace(
    NEVER_FLAT,
    chunk_bytes=64,
    window=1,
    binomial_bytes=NEVER,
    doubling_bytes=NEVER,
    bruck_bytes=NEVER,
    exchange_bytes=NEVER,
)
ALWAYS_LARGE = replace(
    NEVER_FLAT,
    chunk_bytes=64,
    max_chunks=5,
    window=2,
    binomial_bytes=0,
    doubling_bytes=0,
    bruck_bytes=0,
    exchange_bytes=0,
)
ALWAYS_FLAT = Tuning(flat_reduce_bytes=0, flat_broadcast_bytes=0, flat_gather_bytes=0, flat_scatter_bytes=0)
