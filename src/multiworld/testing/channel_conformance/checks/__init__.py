"""All checks, in the order in which they run: those that lose members come last."""

from __future__ import annotations

from ..catalogue import Check
from . import collective, conduct, disagreement, ending, giving_up, losses, moving, order

__all__ = ["CHECKS"]

MODULES = (moving, order, collective, disagreement, giving_up, ending, conduct, losses)
CHECKS = {check.name: check for module in MODULES for check in vars(module).values() if isinstance(check, Check)}
"""Every check that one of the modules defines."""
