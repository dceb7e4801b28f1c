"""Fixtures of the tests of examples and of the documentation: workers that they start themselves are forked."""

from __future__ import annotations

from tests.process.conftest import nursery, warm_workers

__all__ = ["nursery", "warm_workers"]
