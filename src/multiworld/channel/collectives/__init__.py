"""Collective algorithms over point-to-point messages, for every channel that can send and receive."""

from __future__ import annotations

from .algorithms import all_gather, all_reduce, all_to_all, barrier, broadcast, gather, reduce, reduce_scatter, scatter
from .port import Port, SharedSpace, SharedWork
from .reduction import reduce_op_name
from .tuning import TUNING, Tuning
from .validate import check_reduce_op, check_separate

__all__ = [
    "TUNING",
    "Port",
    "SharedSpace",
    "SharedWork",
    "Tuning",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "check_reduce_op",
    "check_separate",
    "gather",
    "reduce",
    "reduce_op_name",
    "reduce_scatter",
    "scatter",
]
