"""Which connection the number of a node means."""

from __future__ import annotations

import pytest
import torch

from multiworld.remote.errors import ConnectError
from multiworld.remote.session.open_connections import check_single

from ..fake_node import remote_of, values
from ..fake_nodes import FakeNodes


def test_a_tensor_goes_to_a_node_of_its_own_connection() -> None:
    with FakeNodes(2) as first, FakeNodes(1) as second:
        there = remote_of(first[1].ones(3)).to_node(2)
        assert there._session is first[2].session()
        assert torch.equal(values(there), torch.ones(3))
        with pytest.raises(KeyError):  # this connection has no node 2
            remote_of(second[1].ones(3)).to_node(2)


def test_with_the_device_name_a_second_connection_is_an_error_until_the_first_has_ended() -> None:
    with FakeNodes(1):
        check_single(has_name=False)
        with pytest.raises(ConnectError, match=r"'remote:1' can't mean two.*nodes\.close\(\)"):
            check_single(has_name=True)
    check_single(has_name=True)
