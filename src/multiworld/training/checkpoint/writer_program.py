"""The process that writes one training process's checkpoints. It gives way to the training.

In the training process, a thread that writes takes the interpreter lock for every tensor and value, and each of the
model's calls may wait for it. Here only the copy is left there (see docs/decisions).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import select
import signal
import socket
from collections.abc import Callable

import torch

from ...process.spawn import seqpacket
from .disk import Disk
from .orders import MAX_REASON, ORDERS, REPORTS, Report, Write, WriteFailed, WritersGone, Written
from .staging import Staged
from .writing import Files, reason_of, remove_surplus, write_checkpoint

NICENESS = 10
"""It takes what the training leaves over. At 19 it would starve on a host whose cores are all busy."""


def main(fd: int) -> None:
    """Carry out orders until the training process is gone. What is being written then is finished, if it can be."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the training process decides when to end
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    torch.set_num_threads(1)
    torch.serialization.set_crc32_options(False)  # see packing; the manifest's hashes cover all
    with socket.socket(fileno=fd) as channel:
        files = Files()
        while (received := seqpacket.receive(channel)) is not None:
            content, fds = received
            order = ORDERS.decode(content)
            if not isinstance(order, Write):
                continue  # it came after its attempt's end
            report = _carry_out(order, fds, files, channel)
            with contextlib.suppress(BrokenPipeError):
                seqpacket.send(channel, REPORTS.encode(report))


def _carry_out(order: Write, fds: list[int], files: Files, channel: socket.socket) -> Report:
    memory_fd, staged_fd = fds
    try:
        with open(staged_fd, "rb") as file:
            staged: Staged = pickle.load(file)
        size = os.fstat(memory_fd).st_size
        memory = mmap.mmap(memory_fd, size) if size else None
        path = write_checkpoint(order, staged, memory, Disk(sync=order.sync), files, _listener(order, channel))
        if path is None:
            return Written(attempt=order.attempt)
        size_bytes = sum(file.stat().st_size for file in path.iterdir())
        return Written(attempt=order.attempt, path=str(path), size_bytes=size_bytes, problem=_tidy(order))
    except Exception as error:  # any of them: a failed save never ends the training
        return WriteFailed(attempt=order.attempt, reason=reason_of(error)[:MAX_REASON])
    finally:
        os.close(memory_fd)


def _tidy(order: Write) -> str:
    try:
        remove_surplus(order, Disk(sync=order.sync))
    except OSError as error:
        return reason_of(error)[:MAX_REASON]
    return ""


def _listener(order: Write, channel: socket.socket) -> Callable[[float], frozenset[int]]:
    """Return what waits for news of lost writers. When the training process is gone, all others count as gone."""
    gone: set[int] = set()

    def listen(timeout_s: float) -> frozenset[int]:
        if select.select([channel], [], [], timeout_s)[0]:
            received = seqpacket.receive(channel)
            if received is None:
                gone.update(range(1, order.num_writers))
            else:
                message = ORDERS.decode(received[0])
                if isinstance(message, WritersGone) and message.attempt == order.attempt:
                    gone.update(message.writers)
        return frozenset(gone)

    return listen
