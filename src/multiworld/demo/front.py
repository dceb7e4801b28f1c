"""The front of the rhombus: sends micro-batches in, hands out each answer once. On the public API only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass

import torch

import multiworld as mw

from .ledger import RequestLedger
from .pipeline import DOWNSTREAM, UPSTREAM, Rhombus, receive

__all__ = ["Answer", "Front"]


@dataclass(frozen=True)
class Answer:
    """The logits ``[batch, 10]`` of one request, the number of the B process that it went through, and whether A had
    given it to another one before.
    """

    request: int
    logits: torch.Tensor
    worker: int
    replayed: bool


class Front:
    """The entry and the exit of the rhombus: keeps a window of requests in flight, hands out each answer once."""

    def __init__(self, to_a: mw.World, from_c: mw.World, ledger: RequestLedger) -> None:
        self._to_a, self._from_c, self.ledger = to_a, from_c, ledger
        self._open: dict[int, torch.Tensor] = {}
        self._acknowledge: list[int] = []
        self._answered = asyncio.Event()
        self._all_sent = False

    @classmethod
    async def join(cls, manager: mw.WorldManager, rhombus: Rhombus, ledger: RequestLedger) -> Front:
        """Form the two worlds that the front is in."""
        to_a, from_c = await asyncio.gather(
            rhombus.join(manager, "front", "a", rank=UPSTREAM), rhombus.join(manager, "c", "front", rank=DOWNSTREAM)
        )
        return cls(to_a, from_c, ledger)

    async def serve(self, requests: Iterable[torch.Tensor]) -> AsyncGenerator[Answer, None]:
        """Send each micro-batch and yield the answers as they come; end when every request has been answered.

        ``requests`` is advanced one ahead of what is sent. Raises ``WorldBrokenError`` when A or C is lost: this
        pipeline replicates B only.
        """
        sending = asyncio.create_task(self._send_all(requests))
        try:
            while not self._all_sent or self.ledger.unanswered:
                receiving = asyncio.create_task(receive(self._from_c, UPSTREAM))
                try:
                    await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
                    if sending.done():
                        sending.result()  # a failure to send must not leave us waiting for an answer
                    reply = await receiving
                finally:
                    receiving.cancel()
                request = int(reply["request"])
                if self.ledger.answer(request):
                    del self._open[request]
                    self._acknowledge.append(request)
                    self._answered.set()
                    yield Answer(request, reply["values"], int(reply["worker"]), int(reply["attempt"]) > 1)
            await sending
        finally:
            sending.cancel()

    async def leave(self) -> None:
        """Leave both worlds, which ends A and C and through them the replicas."""
        await asyncio.gather(self._to_a.leave(), self._from_c.leave())

    async def _send_all(self, requests: Iterable[torch.Tensor]) -> None:
        iterator = iter(requests)
        images = next(iterator, None)
        self._all_sent = images is None
        while images is not None:
            following = next(iterator, None)
            while not self.ledger.has_room:
                await self._answer_or_replay()
            request = self.ledger.open(now=asyncio.get_running_loop().time())
            self._open[request] = images
            # Known before the last request goes out, so that the receiver never waits for an answer after the last one.
            self._all_sent = following is None
            await self._send(request)
            images = following
        while self.ledger.unanswered:
            await self._answer_or_replay()

    async def _answer_or_replay(self) -> None:
        """Wait for an answer or for the oldest deadline, and send again what is overdue: the last resort."""
        loop = asyncio.get_running_loop()
        due = self.ledger.next_deadline()
        try:
            await asyncio.wait_for(self._answered.wait(), None if due is None else max(0.0, due - loop.time()))
        except asyncio.TimeoutError:
            for request in self.ledger.take_overdue(now=loop.time()):
                await self._send(request)
        self._answered.clear()

    async def _send(self, request: int) -> None:
        images = self._open.get(request)
        if images is None:  # answered while an earlier overdue request was being sent
            return
        answered, self._acknowledge = self._acknowledge, []
        message = {"request": torch.tensor(request), "answered": torch.tensor(answered, dtype=torch.int64)}
        await self._to_a.send_tensors({**message, "values": images}, DOWNSTREAM)
