"""Has the plans for each next single loss made in advance, by another process, while the training goes on.

A plan takes up to a tenth of a second of Python, in one piece. In the training process, each of the model's calls could
wait for the interpreter lock meanwhile, so a process of its own makes them, which gives way to the training.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from ...process.spawn import seqpacket
from ...process.spawn.interpreter import start_connected
from ...wire.progress.operation import Operation
from ...wire.progress.waiting import run_in_thread, wait_blocking
from ..planning.changes.conditions import Conditions
from ..planning.changes.foreseen import Outcome
from ..planning.plan import Plan
from ..planning.templates import Templates

logger = logging.getLogger(__name__)

PROGRAM = "multiworld.training.pipeline.foresight_program:main"
WORTH_IT = 4096
"""Members times micro-batches of a step. Below, a plan takes less than 10 ms: it takes 12 ms for 32 members with 128,
and 6 ms for 16 members with 64, rerouting included (``reconfigure`` with 48 layers)."""
END_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Order:
    """What the other process is to plan for: the loss of each of ``lost`` alone, one after the other."""

    generation: int
    lost: tuple[str, ...]
    plan: Plan
    templates: Templates
    conditions: Conditions


class Foresight:
    """Of one member. All calls on one thread. No error of it reaches the training, which can plan for itself."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._beginning: Operation[None] | None = None
        self._generation = 0
        self._outcomes: dict[str, bytes] = {}
        """Packed: after a loss, only one of them is needed, and quickly."""
        self._has_failed = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def begin(self, order: Order) -> None:
        """Have plans made for this generation, and forget those for others. Returns at once."""
        self.forget()
        self._generation = order.generation
        if not self._has_failed:
            self._beginning = run_in_thread(lambda: self._send(order), "multiworld-training-foresight")

    def forget(self) -> None:
        """The generation has another plan than the one that was asked for, or is over."""
        self._finish_beginning()
        self._drain()
        self._generation, self._outcomes = 0, {}

    def outcome(self, generation: int, lost: str) -> Outcome | None:
        """Return what follows from this loss in the generation; None if it is not known yet, or was not asked for."""
        if generation != self._generation or not generation:
            return None
        self._finish_beginning()
        self._drain()
        packed = self._outcomes.get(lost)
        outcome: Outcome | None = None if packed is None else pickle.loads(packed)
        return outcome

    def close(self) -> None:
        """End the process. Idempotent."""
        self._finish_beginning()
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()  # it may be in the midst of a plan, and leaves nothing behind
            process.wait(END_S)

    def _send(self, order: Order) -> None:
        if self._channel is None:
            self._process, self._channel = start_connected(PROGRAM)
        content = seqpacket.sealed(pickle.dumps(order))
        try:
            seqpacket.send(self._channel, b"order", (content,))
        finally:
            os.close(content)

    def _finish_beginning(self) -> None:
        beginning, self._beginning = self._beginning, None
        if beginning is not None:
            try:
                wait_blocking(beginning)
            except OSError as error:
                self._fail(str(error))

    def _drain(self) -> None:
        """Take what has been planned. An end of the process is seen here."""
        while self._channel is not None and seqpacket.is_readable(self._channel):
            received = seqpacket.receive(self._channel)
            if received is None:
                self._fail("the process that plans has ended")
                return
            content, fds = received
            with contextlib.ExitStack() as stack:
                for fd in fds:
                    stack.callback(os.close, fd)
                with open(fds[0], "rb", closefd=False) as file:
                    packed = file.read()
            generation, _, lost = content.decode().partition(" ")
            if int(generation) == self._generation:
                self._outcomes[lost] = packed

    def _fail(self, reason: str) -> None:
        logger.info("plans are not made in advance any more: %s", reason)
        self._has_failed = True
        self.close()


def losses_to_foresee(members: Sequence[str], member: str, num_micro_batches: int) -> tuple[str, ...]:
    """Return after whose loss this member would propose a plan; nobody's if a plan is made quickly enough anyway.

    The first of ``members`` proposes what follows a loss, and the second one what follows the loss of the first.
    """
    if len(members) * num_micro_batches < WORTH_IT or member not in members[:2]:
        return ()
    return tuple(members[1:]) if member == members[0] else (members[0],)
