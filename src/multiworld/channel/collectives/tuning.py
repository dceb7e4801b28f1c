"""At which sizes the algorithms change, and in which pieces large tensors travel."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Every rank of a call must use the same one: it decides which messages there are."""

    chunk_bytes: int = 1024 * 1024
    """Large tensors travel in chunks of about this size, so that one is worked on while the next one arrives."""
    max_chunks: int = 64
    """Beyond so many per transfer the chunks grow instead: more would only cost messages."""
    window: int = 3
    """How many receives are posted ahead: one that fills, one that is being reduced, one to spare."""
    binomial_bytes: int = 256 * 1024
    """Broadcast and reduce use a binomial tree up to this size, a chain of ranks above."""
    doubling_bytes: int = 256 * 1024
    """All-reduce uses recursive doubling up to this size, a ring above."""
    bruck_bytes: int = 32 * 1024
    """All-gather doubles its blocks (Bruck) up to this size of one rank's tensor, and uses a ring above."""
    exchange_bytes: int = 32 * 1024
    """Reduce-scatter sends each block straight to its owner up to this size of a block, and uses a ring above."""

    flat_reduce_bytes: int = 0
    """All-reduce and reduce go through shared memory above this size, where the ranks have some."""
    flat_broadcast_bytes: int = 256 * 1024
    """Likewise broadcast."""
    flat_gather_bytes: int = 64 * 1024
    """Likewise all-gather, by the size of one rank's tensor."""
    flat_scatter_bytes: int = 64 * 1024
    """Likewise reduce-scatter, by the size of a block."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value, least = getattr(self, each.name), 1 if each.name in ("chunk_bytes", "max_chunks", "window") else 0
            if value < least:
                raise ValueError(f"{each.name} is {value}, but must be at least {least}")


TUNING = Tuning()
