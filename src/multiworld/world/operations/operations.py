"""How every operation of a world starts, and how a thread waits for one.

Its arguments, the state of the world and its deadline are checked at the start.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...channel.base import DataChannel, Payload
from ...channel.collectives.validate import check_separate
from ...channel.payload.small_message import Received
from ...errors import InvalidValueError, OperationTimeoutError, PeerLeftError, WorldBrokenError, WorldClosedError, again
from ...wire.progress.operation import Operation, settler
from ...wire.progress.thread import ProgressThread
from ...wire.progress.waiting import outcome, run_in_thread, wait_blocking, while_blocked
from ..state import WorldState
from .arguments import Arguments, check_seconds
from .rounds import CollectiveRounds
from .several import then

T = TypeVar("T")


class WorldOperations(ABC):
    """What the asyncio and the blocking API of a world share; ``World`` adds the first of them, and its life."""

    def __init__(
        self, loop: ProgressThread, *, name: str, rank: int, world_size: int, generation: int, device: torch.device
    ) -> None:
        self.name, self.rank, self.world_size, self.generation = name, rank, world_size, generation
        self.rounds = CollectiveRounds()
        self._loop = loop
        self._arguments = Arguments(rank, world_size, device)
        self._lock = threading.Lock()
        self._state = WorldState.FORMING
        self._error: WorldBrokenError | None = None
        self._channel: DataChannel | None = None
        self._abandoned = False  # the copy of it in a forked child
        self._num_started = self._num_pending = self._num_timed_out = 0

    def start_send(self, tensor: Tensor, dst: int, tag: int, timeout_s: float | None) -> Operation[None]:
        source = self._arguments.outgoing(tensor, "tensor")
        self._arguments.check_message(dst, "dst", tag)
        return self._start("send", lambda channel: channel.send(source, dst, tag), timeout_s)

    def start_recv(self, tensor: Tensor, src: int, tag: int, timeout_s: float | None) -> Operation[None]:
        target, finish = self._arguments.incoming(tensor, "tensor")
        self._arguments.check_message(src, "src", tag)
        return self._start("recv", lambda channel: channel.recv(target, src, tag), timeout_s, finish, left=(src, tag))

    def start_recv_any(self, tensor: Tensor, tag: int, timeout_s: float | None) -> Operation[int]:
        if self.world_size == 1:
            raise InvalidValueError(f"world {self.name!r} has no other rank to receive from")
        target, finish = self._arguments.incoming(tensor, "tensor")
        self._arguments.check_tag(tag)
        return self._start(
            "recv_any", lambda channel: channel.recv_any(target, tag), timeout_s, finish, left=(None, tag)
        )

    def start_send_tensors(self, payload: Payload, dst: int, tag: int, timeout_s: float | None) -> Operation[None]:
        ready = self._arguments.payload(payload)
        self._arguments.check_message(dst, "dst", tag)
        return self._start("send_tensors", lambda channel: channel.send_tensors(ready, dst, tag), timeout_s)

    def start_recv_tensors(self, src: int, tag: int, timeout_s: float | None) -> Operation[Payload]:
        self._arguments.check_message(src, "src", tag)
        return self._start("recv_tensors", lambda channel: channel.recv_tensors(src, tag), timeout_s, left=(src, tag))

    def send_bytes(self, packed: bytearray, dst: int, tag: int) -> bool:
        """Send a few bytes at once, as if they were a tensor ``[n]`` uint8. False: they have to be sent as one.

        It is for those who send very often: rank and tag are not checked. Raises the error of a world that is broken.
        """
        was_sent = self._check_open(None).send_bytes(packed, dst, tag)
        self._num_started += was_sent
        return was_sent

    def start_recv_bytes(self, src: int, tag: int, timeout_s: float | None) -> Operation[Received]:
        """As ``start_recv_tensors``; a small tensor ``[n]`` uint8 may come as ``SmallMessage``, its memory."""
        self._arguments.check_message(src, "src", tag)
        return self._start("recv_tensors", lambda channel: channel.recv_bytes(src, tag), timeout_s, left=(src, tag))

    def start_broadcast(self, tensor: Tensor, src: int, timeout_s: float | None) -> Operation[None]:
        self._arguments.check_rank(src, "src")
        target, finish = self._arguments.incoming(tensor, "tensor", keep=True)
        return self._start_collective("broadcast", lambda channel: channel.broadcast(target, src), timeout_s, finish)

    def start_all_reduce(self, tensor: Tensor, op: Any, timeout_s: float | None) -> Operation[None]:
        self._arguments.check_reduce(op, tensor)
        target, finish = self._arguments.incoming(tensor, "tensor", keep=True)
        return self._start_collective("all_reduce", lambda channel: channel.all_reduce(target, op), timeout_s, finish)

    def start_reduce(self, tensor: Tensor, dst: int, op: Any, timeout_s: float | None) -> Operation[None]:
        self._arguments.check_rank(dst, "dst")
        self._arguments.check_reduce(op, tensor)
        target, finish = self._arguments.incoming(tensor, "tensor", keep=True)
        return self._start_collective("reduce", lambda channel: channel.reduce(target, dst, op), timeout_s, finish)

    def start_all_gather(self, tensor_list: list[Tensor], tensor: Tensor, timeout_s: float | None) -> Operation[None]:
        source = self._arguments.outgoing(tensor, "tensor")
        targets, finish = self._arguments.incoming_list(tensor_list, "tensor_list", like=tensor)
        check_separate(tensor_list, "tensor_list", tensor, "tensor", in_place=self.rank)
        return self._start_collective(
            "all_gather", lambda channel: channel.all_gather(targets, source), timeout_s, finish
        )

    def start_gather(
        self, tensor: Tensor, gather_list: list[Tensor] | None, dst: int, timeout_s: float | None
    ) -> Operation[None]:
        self._arguments.check_rank(dst, "dst")
        source = self._arguments.outgoing(tensor, "tensor")
        targets, finish = self._arguments.incoming_at(gather_list, "gather_list", root=dst, like=tensor)
        check_separate(gather_list or (), "gather_list", tensor, "tensor", in_place=self.rank)
        return self._start_collective("gather", lambda channel: channel.gather(source, targets, dst), timeout_s, finish)

    def start_scatter(
        self, tensor: Tensor, scatter_list: list[Tensor] | None, src: int, timeout_s: float | None
    ) -> Operation[None]:
        self._arguments.check_rank(src, "src")
        target, finish = self._arguments.incoming(tensor, "tensor")
        sources = self._arguments.outgoing_at(scatter_list, "scatter_list", root=src, like=tensor)
        check_separate(tensor, "tensor", scatter_list or (), "scatter_list", in_place=self.rank)
        return self._start_collective(
            "scatter", lambda channel: channel.scatter(target, sources, src), timeout_s, finish
        )

    def start_reduce_scatter(
        self, output: Tensor, input_list: list[Tensor], op: Any, timeout_s: float | None
    ) -> Operation[None]:
        self._arguments.check_reduce(op, output)
        target, finish = self._arguments.incoming(output, "output")
        sources = self._arguments.outgoing_list(input_list, "input_list", like=output)
        check_separate(output, "output", input_list, "input_list", in_place=self.rank)
        return self._start_collective(
            "reduce_scatter", lambda channel: channel.reduce_scatter(target, sources, op), timeout_s, finish
        )

    def start_all_to_all(
        self, output_list: list[Tensor], input_list: list[Tensor], timeout_s: float | None
    ) -> Operation[None]:
        targets, finish = self._arguments.incoming_list(output_list, "output_list", like=None)
        sources = self._arguments.outgoing_list(input_list, "input_list", like=None)
        check_separate(output_list, "output_list", input_list, "input_list")
        return self._start_collective(
            "all_to_all", lambda channel: channel.all_to_all(targets, sources), timeout_s, finish
        )

    def start_barrier(self, timeout_s: float | None) -> Operation[None]:
        return self._start_collective("barrier", lambda channel: channel.barrier(), timeout_s)

    # ---- how a thread waits

    def wait_thread(self, operation: Operation[T], peer: int | None, timeout_s: float | None) -> T:
        """Block the calling thread until the operation is done; meanwhile it reads what comes from the peer, or all."""
        channel = self._channel
        if operation.done:
            return outcome(operation)
        if channel is None:
            return wait_blocking(operation)
        return wait_blocking(operation, help_with=partial(channel.help, operation, peer, timeout_s))

    def wait_for(self, operation: Operation[Any], peer: int | None, timeout_s: float | None) -> bool:
        """Block the calling thread until the operation is done or the time is over; False: it goes on.

        It goes on, too, when the thread is interrupted.
        """
        channel = self._channel
        if timeout_s is None and channel is not None:  # the quick way, which mostly is all
            while_blocked(partial(channel.help, operation, peer, None))
            if operation.done:
                return True
        waiter: Operation[None] = Operation()
        settle = settler(waiter)
        operation.add_callback(settle)
        timer = None if timeout_s is None else self._loop.call_later(timeout_s, settle)
        try:
            self.wait_thread(waiter, peer, None)
        finally:
            operation.discard_callback(settle)
            if timer is not None:
                timer.cancel()
        return operation.done

    def soon(self, call: Callable[[], None]) -> None:
        """Have the progress thread call this: for those who must not take a lock, as a finalizer."""
        self._loop.call_soon(call)

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Have the progress thread call this after some time; the call must be quick."""
        self._loop.call_later(delay_s, call)

    @property
    def abandoned(self) -> bool:
        """Whether this is the copy of it in a forked child."""
        return self._abandoned

    @abstractmethod
    def leave_blocking(self, timeout_s: float | None) -> None: ...

    @abstractmethod
    def wait_broken_blocking(self) -> WorldBrokenError: ...

    # ---- how an operation starts

    def _start(
        self,
        name: str,
        issue: Callable[[DataChannel], Operation[T]],
        timeout_s: float | None,
        finish: Callable[[], None] | None = None,
        left: tuple[int | None, int] | None = None,
    ) -> Operation[T]:
        if timeout_s is not None:
            check_seconds(timeout_s, "timeout_s", "of seconds or None")
        channel = self._check_open(left)
        operation = issue(channel)
        self._num_started += 1
        if finish is not None:
            operation = then(operation, finish)
        if not operation.done:
            self._num_pending += 1
            operation.add_callback(self._ended)
            if self._error is not None and left is None:  # it broke between the look and the start
                operation.cancel(self._error)
            elif timeout_s is not None:
                self._set_deadline(name, operation, timeout_s)
        return operation

    def _start_collective(
        self,
        name: str,
        issue: Callable[[DataChannel], Operation[None]],
        timeout_s: float | None,
        finish: Callable[[], None] | None = None,
    ) -> Operation[None]:
        operation = self._start(name, issue, timeout_s, finish)
        number = self.rounds.start()
        operation.add_callback(lambda _: self.rounds.end(number))
        return operation

    def _check_open(self, left: tuple[int | None, int] | None) -> DataChannel:
        if self._state is WorldState.ACTIVE:
            assert self._channel is not None
            return self._channel
        error = self._error
        if self._state is WorldState.BROKEN and error is not None:
            if isinstance(error, PeerLeftError) and left is not None and self._channel is not None:
                src, tag = left
                if self._channel.deliver_left(src, tag):
                    return self._channel
            raise again(error)
        raise WorldClosedError(self.name, self.generation, self._abandoned)

    def _ended(self, operation: Operation[Any]) -> None:
        self._num_pending -= 1

    def _set_deadline(self, name: str, operation: Operation[Any], timeout_s: float) -> None:
        error = OperationTimeoutError(self.name, self.generation, name, timeout_s)

        def cancel() -> None:
            if operation.cancel(error):
                with self._lock:
                    self._num_timed_out += 1

        def expire() -> None:
            if operation.slow_cancel:
                run_in_thread(cancel, "multiworld-expire")
            else:
                cancel()

        timer = self._loop.call_later(timeout_s, expire)
        operation.add_callback(lambda _: timer.cancel())
