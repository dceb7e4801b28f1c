"""What training uses of ``WorldManager``, of one simulated process."""

from __future__ import annotations

from collections.abc import Callable

from multiworld.errors import StoreError
from multiworld.wire.progress.operation import Operation
from multiworld.world.joining.join_request import JoinRequest

from .member import Member
from .stores import Client, Server
from .turns import Process
from .worlds import Worlds


class Manager:
    """Of one process: what training uses of ``WorldManager``. ``own_store``: returns the store's URL."""

    job = "simulated"

    def __init__(
        self,
        worlds: Worlds,
        process: Process,
        server_of: Callable[[str], Server | None],
        own_store: Callable[[], str],
    ) -> None:
        self._worlds, self._process, self._server_of, self._own_store = worlds, process, server_of, own_store

    def start_join(self, request: JoinRequest) -> Operation[Member]:
        assert request.rank is not None
        assert request.world_size is not None
        self._process.phase = "form"
        name, rank, size = request.name, request.rank, request.world_size
        return self._worlds.join(self._process, self._own_store(), name, rank, size, request.timeout_s)

    def start_store_client(self, url: str, timeout_s: float) -> Operation[Client]:
        turns, server = self._worlds.turns, self._server_of(url)
        turns.check_alive()
        operation: Operation[Client] = Operation()
        turns.after(timeout_s, lambda: operation.fail(StoreError(url, "no answer")), self._process)
        if server is not None:
            connecting = server.connect(self._process)

            def connected(_: Operation[Client]) -> None:
                if connecting.error is not None:
                    operation.fail(connecting.error)
                elif not operation.succeed(connecting.result()):
                    connecting.result().close()

            connecting.add_callback(connected)
        return operation
