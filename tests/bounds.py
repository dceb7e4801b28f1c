"""The times that the short fault tests allow; the kit has them, for tests of everybody's.

``python -m benchmarks.faults`` measures the promised ones themselves, over many trials.
"""

from __future__ import annotations

from multiworld.testing.deadlines import CANCEL_S, CUT_S, KILL_S, PENDING_S, STALL_S, STOP_S

__all__ = ["CANCEL_S", "CUT_S", "KILL_S", "PENDING_S", "STALL_S", "STOP_S"]
