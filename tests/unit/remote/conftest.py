"""Fixtures of the tests of remote tensors: a node in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from multiworld.remote.master.node import Node

from .fake_node import FakeNode


@pytest.fixture
def fake() -> Iterator[FakeNode]:
    """A node in this process, with what a test may want to look at."""
    with FakeNode() as fake_node:
        yield fake_node


@pytest.fixture
def node(fake: FakeNode) -> Node:
    """As ``nodes[1]``."""
    return fake.node
