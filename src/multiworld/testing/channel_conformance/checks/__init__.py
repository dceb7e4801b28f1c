"""All checks, in the order in which they run: those that lose members come last."""

from __future__ import annotations

from ..catalogue import Check
from . import collective, conduct, disagreement, ending, giving_up, losses, moving, order

__all__ = ["CHECKS"]

MODULES = (moving, order, collective, disagreement, giving_up, ending, conduct, losses)
CHECKS: dict[str, Check] = {check.name: check for module in MODULES for check in module.CHECKS}
