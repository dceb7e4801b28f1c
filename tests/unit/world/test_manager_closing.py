"""A manager that is closed ends what waits for it."""

from __future__ import annotations

import socket

import pytest

from multiworld.errors import StoreError
from multiworld.wire.progress.waiting import wait_blocking
from multiworld.world.manager import WorldManager


def test_a_connection_to_a_store_that_never_answers_ends_with_the_manager() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        manager = WorldManager()
        url = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        connecting = manager.start_store_client(url, 600.0)
        assert not connecting.done
        manager.close()
        with pytest.raises(StoreError, match="this WorldManager was closed"):
            wait_blocking(connecting)
        with pytest.raises(RuntimeError, match="is closed"):
            manager.start_store_client(url, 600.0)
