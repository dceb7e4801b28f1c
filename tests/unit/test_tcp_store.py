"""A store whose connection is lost at once: its client says so in the store's own terms."""

from __future__ import annotations

import pytest

from multiworld.errors import StoreError
from multiworld.store.tcp import TCPStore
from multiworld.testing import wait_until
from tests.unit.wire.connected import connected_pair


def test_a_store_that_is_lost_as_soon_as_it_was_reached_has_no_address_to_ask_for(no_leaks: None) -> None:
    store = TCPStore("tcp://127.0.0.1:29500")
    with connected_pair() as pair:
        store.attach(pair.left)
        assert store.local_host == "127.0.0.1"
        pair.left.abort()
        assert wait_until(lambda: pair.left.sock.fileno() == -1, timeout_s=5)
        with pytest.raises(StoreError, match="29500"):
            assert not store.local_host
