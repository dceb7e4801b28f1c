"""All checks, in the order in which they run: first those that break nothing."""

from __future__ import annotations

from ..catalogue import Check
from . import collective, disagreement, giving_up, moving, order

__all__ = ["CHECKS"]

CHECKS: dict[str, Check] = {
    check.name: check for module in (moving, order, collective, disagreement, giving_up) for check in module.CHECKS
}
