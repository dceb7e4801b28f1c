"""The blocking twins of a world's operations, for programs without an event loop and for any thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from ...channel.base import ANY_RANK, Payload, ReduceOp
from ...errors import WorldBrokenError
from ...wire.progress.operation import Operation
from ...wire.progress.waiting import start_and_wait, while_blocked
from .operations import WorldOperations
from .request import Request

T = TypeVar("T")


class BlockingWorld:
    """``world.blocking``: the same operations and errors as ``World``, each returning when it is done.

    Those with an ``i`` before their name only start it, and return a ``Request`` at once; here ``timeout_s`` is the
    deadline of the operation, whether or not somebody waits.
    """

    def __init__(self, world: WorldOperations) -> None:
        self._world = world

    def send(self, tensor: Tensor, dst: int, tag: int = 0, timeout_s: float | None = None) -> None:
        self._world.wait_thread(self._world.start_send(tensor, dst, tag, timeout_s), dst, timeout_s)

    def recv(self, tensor: Tensor, src: int, tag: int = 0, timeout_s: float | None = None) -> None:
        self._receive(lambda: self._world.start_recv(tensor, src, tag, timeout_s), src, timeout_s)

    def recv_any(self, tensor: Tensor, tag: int = 0, timeout_s: float | None = None) -> int:
        return self._receive(lambda: self._world.start_recv_any(tensor, tag, timeout_s), ANY_RANK, timeout_s)

    def send_tensors(self, payload: Payload, dst: int, tag: int = 0, timeout_s: float | None = None) -> None:
        self._world.wait_thread(self._world.start_send_tensors(payload, dst, tag, timeout_s), dst, timeout_s)

    def recv_tensors(self, src: int, tag: int = 0, timeout_s: float | None = None) -> Payload:
        return self._receive(lambda: self._world.start_recv_tensors(src, tag, timeout_s), src, timeout_s)

    def _receive(self, start: Callable[[], Operation[T]], src: int, timeout_s: float | None) -> T:
        """Interrupted, it leaves the message for the next receive."""
        return start_and_wait(start, lambda operation: self._world.wait_thread(operation, src, timeout_s))

    def broadcast(self, tensor: Tensor, src: int, timeout_s: float | None = None) -> None:
        self._collective(lambda: self._world.start_broadcast(tensor, src, timeout_s), timeout_s)

    def all_reduce(self, tensor: Tensor, op: Any = ReduceOp.SUM, timeout_s: float | None = None) -> None:
        self._collective(lambda: self._world.start_all_reduce(tensor, op, timeout_s), timeout_s)

    def reduce(self, tensor: Tensor, dst: int, op: Any = ReduceOp.SUM, timeout_s: float | None = None) -> None:
        self._collective(lambda: self._world.start_reduce(tensor, dst, op, timeout_s), timeout_s)

    def all_gather(self, tensor_list: list[Tensor], tensor: Tensor, timeout_s: float | None = None) -> None:
        self._collective(lambda: self._world.start_all_gather(tensor_list, tensor, timeout_s), timeout_s)

    def gather(
        self, tensor: Tensor, gather_list: list[Tensor] | None = None, dst: int = 0, timeout_s: float | None = None
    ) -> None:
        self._collective(lambda: self._world.start_gather(tensor, gather_list, dst, timeout_s), timeout_s)

    def scatter(
        self, tensor: Tensor, scatter_list: list[Tensor] | None = None, src: int = 0, timeout_s: float | None = None
    ) -> None:
        self._collective(lambda: self._world.start_scatter(tensor, scatter_list, src, timeout_s), timeout_s)

    def reduce_scatter(
        self, output: Tensor, input_list: list[Tensor], op: Any = ReduceOp.SUM, timeout_s: float | None = None
    ) -> None:
        self._collective(lambda: self._world.start_reduce_scatter(output, input_list, op, timeout_s), timeout_s)

    def all_to_all(self, output_list: list[Tensor], input_list: list[Tensor], timeout_s: float | None = None) -> None:
        self._collective(lambda: self._world.start_all_to_all(output_list, input_list, timeout_s), timeout_s)

    def barrier(self, timeout_s: float | None = None) -> None:
        self._collective(lambda: self._world.start_barrier(timeout_s), timeout_s)

    def _collective(self, start: Callable[[], Operation[None]], timeout_s: float | None) -> None:
        while_blocked(lambda: self._world.wait_thread(start(), None, timeout_s))

    def isend(self, tensor: Tensor, dst: int, tag: int = 0, timeout_s: float | None = None) -> Request[None]:
        return Request(self._world, self._world.start_send(tensor, dst, tag, timeout_s), "isend", dst)

    def irecv(self, tensor: Tensor, src: int, tag: int = 0, timeout_s: float | None = None) -> Request[None]:
        return Request(self._world, self._world.start_recv(tensor, src, tag, timeout_s), "irecv", src)

    def irecv_any(self, tensor: Tensor, tag: int = 0, timeout_s: float | None = None) -> Request[int]:
        return Request(self._world, self._world.start_recv_any(tensor, tag, timeout_s), "irecv_any", ANY_RANK)

    def isend_tensors(self, payload: Payload, dst: int, tag: int = 0, timeout_s: float | None = None) -> Request[None]:
        return Request(self._world, self._world.start_send_tensors(payload, dst, tag, timeout_s), "isend_tensors", dst)

    def irecv_tensors(self, src: int, tag: int = 0, timeout_s: float | None = None) -> Request[Payload]:
        return Request(self._world, self._world.start_recv_tensors(src, tag, timeout_s), "irecv_tensors", src)

    def ibroadcast(self, tensor: Tensor, src: int, timeout_s: float | None = None) -> Request[None]:
        return Request(self._world, self._world.start_broadcast(tensor, src, timeout_s), "ibroadcast")

    def iall_reduce(self, tensor: Tensor, op: Any = ReduceOp.SUM, timeout_s: float | None = None) -> Request[None]:
        return Request(self._world, self._world.start_all_reduce(tensor, op, timeout_s), "iall_reduce")

    def ireduce(
        self, tensor: Tensor, dst: int, op: Any = ReduceOp.SUM, timeout_s: float | None = None
    ) -> Request[None]:
        return Request(self._world, self._world.start_reduce(tensor, dst, op, timeout_s), "ireduce")

    def iall_gather(self, tensor_list: list[Tensor], tensor: Tensor, timeout_s: float | None = None) -> Request[None]:
        return Request(self._world, self._world.start_all_gather(tensor_list, tensor, timeout_s), "iall_gather")

    def igather(
        self, tensor: Tensor, gather_list: list[Tensor] | None = None, dst: int = 0, timeout_s: float | None = None
    ) -> Request[None]:
        return Request(self._world, self._world.start_gather(tensor, gather_list, dst, timeout_s), "igather")

    def iscatter(
        self, tensor: Tensor, scatter_list: list[Tensor] | None = None, src: int = 0, timeout_s: float | None = None
    ) -> Request[None]:
        return Request(self._world, self._world.start_scatter(tensor, scatter_list, src, timeout_s), "iscatter")

    def ireduce_scatter(
        self, output: Tensor, input_list: list[Tensor], op: Any = ReduceOp.SUM, timeout_s: float | None = None
    ) -> Request[None]:
        operation = self._world.start_reduce_scatter(output, input_list, op, timeout_s)
        return Request(self._world, operation, "ireduce_scatter")

    def iall_to_all(
        self, output_list: list[Tensor], input_list: list[Tensor], timeout_s: float | None = None
    ) -> Request[None]:
        return Request(self._world, self._world.start_all_to_all(output_list, input_list, timeout_s), "iall_to_all")

    def ibarrier(self, timeout_s: float | None = None) -> Request[None]:
        return Request(self._world, self._world.start_barrier(timeout_s), "ibarrier")

    def leave(self, timeout_s: float | None = None) -> None:
        self._world.leave_blocking(timeout_s)

    def wait_broken(self) -> WorldBrokenError:
        return self._world.wait_broken_blocking()
