"""Fixtures of the tests with simulated hosts: their workers are forked too, and move to their hosts then."""

from __future__ import annotations

from tests.process.conftest import nursery, training_modules, warm_workers

__all__ = ["nursery", "training_modules", "warm_workers"]
