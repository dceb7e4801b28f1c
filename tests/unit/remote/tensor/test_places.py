"""Operands of several nodes: the error says where they are, also if both nodes have one number."""

from __future__ import annotations

import pytest
import torch

from multiworld.remote.errors import ConnectionEndedError, PlaceMismatchError

from ..fake_node import FakeNode


def test_operands_on_two_nodes_are_an_error_that_names_both(fake: FakeNode) -> None:
    with FakeNode(2) as other:
        said = (
            r"aten\.add\.Tensor: one operand is on node 1, another on node 2\. Move one of them: tensor\.to_node\(1\)"
        )
        with pytest.raises(PlaceMismatchError, match=said):
            torch.add(fake.node.ones(3), other.node.ones(3))


def test_operands_on_nodes_of_one_number_are_told_apart_by_their_connections(fake: FakeNode) -> None:
    with FakeNode(1) as other:
        said = r"is on node 1, another on node 1 of another connection\. Move the older one: tensor\.to_node\(1\) means"
        with pytest.raises(PlaceMismatchError, match=said):
            torch.add(fake.node.ones(3), other.node.ones(3))


def test_an_operand_of_a_connection_that_ended_is_the_error_of_that(fake: FakeNode) -> None:
    with FakeNode(1) as other:
        older = other.node.ones(3)
    with pytest.raises(ConnectionEndedError, match="the test is over"):
        torch.add(fake.node.ones(3), older)


def test_a_batch_made_of_tensors_of_a_connection_that_ended_is_the_error_of_that() -> None:
    with FakeNode(1) as other:
        older = other.node.ones(3)
    with pytest.raises(ConnectionEndedError, match="the test is over"):  # as DataLoader does in a forked worker
        older.new(torch.ones(3).untyped_storage())
