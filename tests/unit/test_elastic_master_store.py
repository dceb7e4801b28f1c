"""The c10d store of a generation's workers."""

from __future__ import annotations

import socket
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import TCPStore

from multiworld.elastic.master_store import MasterStore


def test_it_serves_c10d_clients_at_its_address_and_at_no_other() -> None:
    store = MasterStore("127.0.0.1", generation=1)
    try:
        client = TCPStore(store.address, store.port, None, is_master=False, timeout=timedelta(seconds=5))
        client.set("key", "value")
        assert client.get("key") == b"value"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", store.port), timeout=5)
    finally:
        store.close()
