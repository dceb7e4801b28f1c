"""The training process's end of the process that writes its checkpoints: starts it, hands over, hears how it went."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess

from ...process.signal_names import how_ended
from ...process.spawn import seqpacket
from ...process.spawn.interpreter import start_connected
from .orders import ORDERS, REPORTS, Report, Write, WriteFailed, WritersGone
from .staging import Staged

PROGRAM = "multiworld.training.checkpoint.writer_program:main"
END_S = 5.0


class CheckpointWriter:
    """All calls on one thread. It writes one checkpoint at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._order: Write | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def order(self) -> Write | None:
        """What is being written."""
        return self._order

    def start(self) -> None:
        """Start the process, which takes seconds, in the background. Raises OSError."""
        if self._process is not None:
            return
        self._process, self._channel = start_connected(PROGRAM)

    def write(self, order: Write, staged: Staged, memory_fd: int) -> None:
        """Hand over; ``memory_fd`` is that of the staging. Raises OSError if there is no such process, or no memory."""
        self.start()
        assert self._order is None
        assert self._channel is not None
        staged_fd = seqpacket.sealed(pickle.dumps(staged))
        try:
            seqpacket.send(self._channel, ORDERS.encode(order), (memory_fd, staged_fd))
        finally:
            os.close(staged_fd)
        self._order = order

    def gone(self, writers: tuple[int, ...]) -> None:
        """Say that other writers of this checkpoint are gone."""
        if self._order is not None and self._channel is not None:
            with contextlib.suppress(BrokenPipeError):  # ``poll`` reports its end
                seqpacket.send(self._channel, ORDERS.encode(WritersGone(attempt=self._order.attempt, writers=writers)))

    def poll(self, timeout_s: float = 0.0) -> Report | None:
        """Return how the checkpoint went, if that is known within this time. A process that was killed is a failure."""
        if self._order is None or self._channel is None:
            return None
        if not seqpacket.is_readable(self._channel, timeout_s):
            return None
        received = seqpacket.receive(self._channel)
        attempt, self._order = self._order.attempt, None
        if received is not None:
            return REPORTS.decode(received[0])
        return WriteFailed(attempt=attempt, reason=f"the process that writes it {self._reap()}")

    def close(self) -> None:
        """End the process, killed if it writes and does not come to an end soon. Idempotent."""
        self._reap()
        self._order = None

    def _reap(self) -> str:
        """Wait for the end of the process, which reads the end of its channel, and say how it ended."""
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.shutdown(socket.SHUT_RDWR)  # workers forked for the data hold copies of it
            self._channel.close()
            self._channel = None
        if self._process is None:
            return "was not there"
        process, self._process = self._process, None
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        hint = " (if nobody did that, the host had too little memory)" if process.returncode == -signal.SIGKILL else ""
        return how_ended(process.returncode) + hint
