"""The c10d store of a generation's workers."""

from __future__ import annotations

import socket
import subprocess
import sys
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import TCPStore

from multiworld.elastic.agent.master_store import MasterKeeper, MasterStore
from multiworld.testing.deadlines import scaled, wait_until
from multiworld.wire.progress.thread import ProgressThread


def set_and_get(address: str, port: int) -> bytes:
    client = TCPStore(address, port, None, is_master=False, timeout=timedelta(seconds=5))
    client.set("key", "value")
    return bytes(client.get("key"))


def test_it_serves_c10d_clients_on_loopback_and_at_no_other_address() -> None:
    store = MasterStore("127.0.0.2", generation=1)
    try:
        assert store.inside == ("127.0.0.1", store.port)
        assert set_and_get(*store.inside) == b"value"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", store.port), timeout=5)
    finally:
        store.close()


def test_workers_come_to_it_through_a_door() -> None:
    loop = ProgressThread("test-master-store")
    served: list[MasterStore] = []
    keeper = MasterKeeper(loop, "127.0.0.2", served.append)
    try:
        loop.call_soon(lambda: keeper.open(1))
        assert wait_until(lambda: bool(served), scaled(5))
        (store,) = served
        assert (store.address, store.port) != store.inside
        assert set_and_get(store.address, store.port) == b"value"
        with socket.create_connection((store.address, store.port), timeout=scaled(5)) as stranger:
            stranger.sendall(b"x" * 64)
            with pytest.raises(ConnectionResetError):
                stranger.recv(1)
    finally:
        loop.call_soon(keeper.close)
        loop.stop()


def test_a_host_without_loopback_serves_it_at_its_address() -> None:
    """In a network namespace of its own, where nothing is up."""
    program = (
        "from multiworld.elastic.agent.master_store import _listen\n"
        "with _listen('0.0.0.0') as listener: print(listener.getsockname()[0])"
    )
    isolated = ["unshare", "--user", "--map-root-user", "--net", sys.executable, "-c", program]
    done = subprocess.run(isolated, capture_output=True, text=True, timeout=scaled(60))
    if done.returncode and "unshare" in done.stderr:
        pytest.skip(f"no namespaces here: {done.stderr.strip()}")
    assert done.stdout.strip() == "0.0.0.0", done.stderr
