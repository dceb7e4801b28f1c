"""Before a rank leaves, the others confirm that they are done with the collectives that it is done with.

A collective of a process group is over on one rank before it is on another, which may still read what the first holds,
or wait for what the library sends on its behalf. So a rank asks before it gives its communicators up.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ...wire.progress.operation import Operation, StepsCancelled, drive, settler
from ..payload.tensors import describe
from ..stream.mesh import StreamMesh
from ..stream.message import USER

ASK_TAG, DONE_TAG = -2, -3  # users' tags are not negative, and the store has -1
_NOTHING = torch.empty(0, dtype=torch.uint8)
_META = describe(_NOTHING)


class LeaveHandshake:
    """The questions of one world. ``over`` returns what is done when nothing is under way that that rank may end."""

    def __init__(self, mesh: StreamMesh, over: Callable[[int], Operation[None]]) -> None:
        self._mesh, self._over = mesh, over

    def listen(self) -> None:
        """Answer the others from now on; once connected."""
        for peer in self._mesh.peers:
            asked = self._mesh.stream(peer).recv(USER, ASK_TAG, _META, _NOTHING)
            asked.add_callback(partial(self._asked, peer))

    def part(self) -> Operation[None]:
        """Ask all others; done when each has answered, or cannot any more."""
        return drive(self._part())

    async def _part(self) -> None:
        answers: list[Operation[None]] = []
        for peer in self._mesh.peers:
            stream = self._mesh.stream(peer)
            self._tell(peer, ASK_TAG)
            answered: Operation[None] = Operation()
            stream.recv(USER, DONE_TAG, _META, _NOTHING).add_callback(settler(answered))
            stream.drained.add_callback(settler(answered))  # it left meanwhile, and answers nothing any more
            answers.append(answered)
        for answered in answers:
            await answered

    def _asked(self, peer: int, asked: Operation[Any]) -> None:
        if asked.error is None:
            self._over(peer).add_callback(partial(self._answer, peer))

    def _answer(self, peer: int, over: Operation[None]) -> None:
        if over.error is None:
            self._tell(peer, DONE_TAG)

    def _tell(self, peer: int, tag: int) -> None:
        """Send an empty message; taken back when the peer has left, lest our own leave waits until it is sent."""
        stream = self._mesh.stream(peer)
        sending = stream.send(USER, tag, _META, [], [_NOTHING])
        stream.drained.add_callback(lambda _: _take_back(sending))


def _take_back(sending: Operation[None]) -> None:
    sending.cancel(StepsCancelled())
