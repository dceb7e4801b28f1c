"""Fixtures: several nodes in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..fake_nodes import FakeNodes


@pytest.fixture
def nodes() -> Iterator[FakeNodes]:
    """Three nodes that can meet."""
    with FakeNodes(3) as fakes:
        yield fakes
