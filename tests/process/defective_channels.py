"""Channels with one defect each, for the conformance suite to find. Each is tcp otherwise."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from multiworld.channel.base import ChannelContext, ChannelStatistics, Payload
from multiworld.channel.stream_channel.channel import Collective
from multiworld.channel.tcp import TcpChannel
from multiworld.errors import OperationTimeoutError, WorldBrokenError
from multiworld.wire.progress.operation import Operation


def relay(inner: Operation[Any], outer: Operation[Any], finish: Callable[[], None] = lambda: None) -> None:
    """Let one operation end as another does, after ``finish`` where it succeeds."""

    def end(_: Operation[Any]) -> None:
        if inner.error is not None:
            outer.fail(inner.error)
        else:
            finish()
            outer.succeed(inner.result())

    inner.add_callback(end)


def done() -> Operation[None]:
    operation: Operation[None] = Operation()
    operation.succeed(None)
    return operation


class OutOfOrder(TcpChannel):
    """Every second of a few small messages overtakes the one before it."""

    def __init__(self, context: ChannelContext) -> None:
        super().__init__(context)
        self._held: dict[tuple[int, int], Tensor] = {}

    def send(self, tensor: Tensor, dst: int, tag: int) -> Operation[None]:
        held = self._held.pop((dst, tag), None)
        if held is not None:
            super().send(tensor.clone(), dst, tag)
            return super().send(held, dst, tag)
        if tensor.numel() != 1:
            return super().send(tensor, dst, tag)
        self._held[dst, tag] = tensor.clone()
        self.context.loop.call_later(0.01, lambda: self._release(dst, tag))
        return done()

    def _release(self, dst: int, tag: int) -> None:
        held = self._held.pop((dst, tag), None)
        if held is not None:
            super().send(held, dst, tag)


class WritesLate(TcpChannel):
    """A receive that was cancelled goes on for a moment."""

    def recv(self, tensor: Tensor, src: int, tag: int) -> Operation[None]:
        inner, outer = super().recv(tensor, src, tag), Operation[None]()
        outer.on_cancel = lambda: self._cancel_soon(inner)
        relay(inner, outer)
        return outer

    def _cancel_soon(self, operation: Operation[None]) -> None:
        self.context.loop.call_later(0.05, partial(_cancel, operation))


class KeepsTheMessage(TcpChannel):
    """A receive that was cancelled takes its message away, without writing it."""

    def recv(self, tensor: Tensor, src: int, tag: int) -> Operation[None]:
        buffer, outer = torch.empty_like(tensor), Operation[None]()

        def finish() -> None:
            if not outer.done:
                tensor.copy_(buffer)

        relay(super().recv(buffer, src, tag), outer, finish)
        return outer


class ReadsLate(TcpChannel):
    """A send returns before its tensor has been read."""

    def send(self, tensor: Tensor, dst: int, tag: int) -> Operation[None]:
        self.context.loop.call_later(0.002, partial(self._send_late, tensor, dst, tag))
        return done()

    def _send_late(self, tensor: Tensor, dst: int, tag: int) -> None:
        super().send(tensor, dst, tag)


class Succeeds(TcpChannel):
    """A receive whose peer is lost succeeds, with whatever its tensor holds."""

    def recv(self, tensor: Tensor, src: int, tag: int) -> Operation[None]:
        inner, outer = super().recv(tensor, src, tag), Operation[None]()
        outer.on_cancel = lambda: _cancel(inner)

        def end(_: Operation[Any]) -> None:
            if inner.error is None or isinstance(inner.error, WorldBrokenError):
                outer.succeed(None)
            else:
                outer.fail(inner.error)

        inner.add_callback(end)
        return outer


def _cancel(operation: Operation[Any]) -> None:
    operation.cancel(OperationTimeoutError("", 0, "recv", 0.0))


class BlocksInAbort(TcpChannel):
    """Aborting waits for something that does not come for seconds."""

    def abort(self, error: Exception) -> None:
        super().abort(error)
        time.sleep(1.5)


class CutsShort(TcpChannel):
    """When a rank left, what was sent to the others a moment before is lost."""

    def send(self, tensor: Tensor, dst: int, tag: int) -> Operation[None]:
        late, send = tensor.clone(), super().send
        self.context.loop.call_later(1.0, lambda: relay(send(late, dst, tag), Operation()))
        return done()


class Ignores(TcpChannel):
    """Aborting leaves receives pending."""

    def recv_tensors(self, src: int, tag: int) -> Operation[Payload]:
        inner, outer = super().recv_tensors(src, tag), Operation[Payload]()
        outer.on_cancel = lambda: _cancel(inner)

        def end(_: Operation[Payload]) -> None:
            if inner.error is None:
                outer.succeed(inner.result())

        inner.add_callback(end)
        return outer


class EndsLate(TcpChannel):
    """A cancelled barrier ends only after a while."""

    def barrier(self) -> Operation[None]:
        inner, outer = super().barrier(), Operation[None]()
        outer.slow_cancel = True

        def cancel() -> None:
            time.sleep(1.0)
            _cancel(inner)

        outer.on_cancel = cancel
        relay(inner, outer)
        return outer


class LeaksThreads(TcpChannel):
    """Each world leaves a thread behind."""

    def __init__(self, context: ChannelContext) -> None:
        super().__init__(context)
        threading.Thread(target=threading.Event().wait, name="leaked", daemon=True).start()


class LeaksMemory(TcpChannel):
    """Each world leaves its largest tensor behind."""

    kept: ClassVar[list[Tensor]] = []

    def send(self, tensor: Tensor, dst: int, tag: int) -> Operation[None]:
        if tensor.nbytes > 1_000_000:
            self.kept.append(tensor.clone())
        return super().send(tensor, dst, tag)


class SumsForMax(TcpChannel):
    """all_reduce sums, whatever was asked for."""

    def all_reduce(self, tensor: Tensor, op: Any) -> Operation[None]:
        wanted = str(op).rpartition(".")[2]
        return super().all_reduce(tensor, torch.distributed.ReduceOp.SUM if wanted == "MAX" else op)


class RoundsDifferently(TcpChannel):
    """One rank rounds the last digit of a float otherwise."""

    def all_reduce(self, tensor: Tensor, op: Any) -> Operation[None]:
        inner, outer = super().all_reduce(tensor, op), Operation[None]()
        outer.on_cancel = lambda: _cancel(inner)

        def finish() -> None:
            if self.context.rank == 1 and tensor.dtype is torch.float32 and tensor.numel():
                flat = tensor.view(-1)
                flat.copy_(torch.nextafter(flat, torch.full_like(flat, 1e9)))

        relay(inner, outer, finish)
        return outer


class CallsTypesTheSame(TcpChannel):
    """Collectives that differ in their reduce operation are taken for the same."""

    def _collective(self, call: Collective) -> Operation[None]:
        return super()._collective(replace(call, signature="anything"))


class Drops(TcpChannel):
    """Every fortieth message gets lost."""

    def __init__(self, context: ChannelContext) -> None:
        super().__init__(context)
        self._num_sent = 0

    def send(self, tensor: Tensor, dst: int, tag: int) -> Operation[None]:
        self._num_sent += 1
        return done() if self._num_sent % 40 == 0 else super().send(tensor, dst, tag)


class TakesAnything(TcpChannel):
    """A receive takes what does not fit, cut off or in part."""

    def recv(self, tensor: Tensor, src: int, tag: int) -> Operation[None]:
        inner, outer = super().recv_tensors(src, tag), Operation[None]()
        outer.on_cancel = lambda: _cancel(inner)

        def end(_: Operation[Any]) -> None:
            if inner.error is not None:
                outer.fail(inner.error)
                return
            found, flat = inner.result(), tensor.view(-1)
            assert isinstance(found, Tensor)
            num_common = min(found.numel(), flat.numel())
            flat[:num_common] = found.view(-1)[:num_common]
            outer.succeed(None)

        inner.add_callback(end)
        return outer


class Remembers(TcpChannel):
    """What one generation of a world has not received, it delivers to the next."""

    unsent: ClassVar[dict[str, list[tuple[Tensor, int, int]]]] = {}

    def send(self, tensor: Tensor, dst: int, tag: int) -> Operation[None]:
        waiting = self.unsent.setdefault(self.context.world, [])
        for old, old_dst, old_tag in waiting if self.context.generation > 1 else ():
            super().send(old, old_dst, old_tag)
        if self.context.generation == 1:
            waiting.append((tensor.clone(), dst, tag))
        else:
            waiting.clear()
        return super().send(tensor, dst, tag)


class Computes(TcpChannel):
    """A thread asks all the time whether something has come."""

    def __init__(self, context: ChannelContext) -> None:
        super().__init__(context)
        self._over = threading.Event()
        threading.Thread(target=self._poll, name="polls", daemon=True).start()

    def _poll(self) -> None:
        while not self._over.wait(0.0005):
            self.statistics()

    def flush(self, timeout_s: float) -> Operation[None]:
        self._over.set()
        return super().flush(timeout_s)

    def abort(self, error: Exception) -> None:
        self._over.set()
        super().abort(error)


class CountsTwice(TcpChannel):
    """Its statistics count what was received twice."""

    def statistics(self) -> ChannelStatistics:
        counts = super().statistics()
        return replace(counts, bytes_received=2 * counts.bytes_received)


class CannotReduce(TcpChannel):
    """It declares that it has no MIN, and tries it all the same."""

    @classmethod
    def can_reduce(cls, op: str, dtype: torch.dtype) -> bool:
        return op != "MIN"
