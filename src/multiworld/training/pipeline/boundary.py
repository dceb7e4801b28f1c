"""What goes from stage to stage in one step: outputs forward, their gradients backward, and nothing waits unnamed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from ...channel.base import Payload
from ...wire.progress.operation import Operation
from ...world.world import World
from ..planning.operations import Kind
from .work import Arrivals

TAGS = {Kind.FORWARD: (1 << 20) + 1, Kind.BACKWARD: (1 << 20) + 2}
AHEAD = 2
"""Receives that are posted before they are needed: what comes meanwhile is put where it belongs at once."""


class Incoming:
    """Messages from one member, in its order: what comes before it is needed is kept."""

    def __init__(self, world: World, source: int, arrivals: Arrivals) -> None:
        self._world, self._source, self._tag = world, source, TAGS[arrivals.kind]
        self._left = deque(arrivals.micro_batches)
        self._posted: deque[tuple[int, Operation[Payload]]] = deque()
        self._kept: dict[int, list[Tensor]] = {}
        self._post()

    def take(self, micro_batch: int) -> list[Tensor]:
        """Wait for the one of this micro-batch. Raises the world's error."""
        while micro_batch not in self._kept:
            number, operation = self._posted.popleft()
            self._post()
            payload = self._world.wait_thread(operation, self._source, None)
            assert isinstance(payload, list)
            self._kept[number] = payload
        return self._kept.pop(micro_batch)

    def _post(self) -> None:
        while self._left and len(self._posted) < AHEAD:
            operation = self._world.start_recv_tensors(self._source, self._tag, None)
            self._posted.append((self._left.popleft(), operation))


class Outgoing:
    """Messages to one member."""

    def __init__(self, world: World, destination: int, kind: Kind) -> None:
        self._world, self._destination, self._tag = world, destination, TAGS[kind]
        self._under_way: deque[tuple[Operation[None], list[Tensor]]] = deque()

    def put(self, tensors: Sequence[Tensor]) -> None:
        """Send these, which stay as they are until ``wait``."""
        payload = [each.detach().to(self._world.device) for each in tensors]
        operation = self._world.start_send_tensors(payload, self._destination, self._tag, None)
        self._under_way.append((operation, payload))
        while self._under_way and self._under_way[0][0].done:
            self._under_way.popleft()[0].result()

    def wait(self) -> None:
        """Wait until all have been sent. Raises the world's error."""
        while self._under_way:
            operation, _ = self._under_way.popleft()
            self._world.wait_thread(operation, self._destination, None)


def received(tensors: Sequence[Tensor], needs_gradient: Sequence[bool]) -> tuple[Tensor, ...]:
    """Return them as inputs of a stage. ``needs_gradient``: of each, whether its gradient goes back."""
    return tuple(
        each.requires_grad_(True) if needed else each for each, needed in zip(tensors, needs_gradient, strict=True)
    )


def gradients_of(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of those inputs that need one; zeros where backward did not come to them."""
    return [each.grad if each.grad is not None else torch.zeros_like(each) for each in inputs if each.requires_grad]
