"""Hold on to one host's far end: start it, tell it things, and pass its lines on with the host's name before them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, Thread
from typing import IO

from ...process.logs.lines import Labeller, LineBuffer
from ...process.spawn.forking import WAITED_FOR
from ...process.spawn.missing_command import start_error
from ...wire.messages import to_json
from .far_order import BEAT, FarOrder

PIECE = 65536
LAST_LINES_S = 2.0
"""For what is still in the pipes when the far end has ended; what it has left behind may hold them open."""
KEPT = 20

Write = Callable[[int, bytes], None]
"""Writes lines to a standard stream, by its descriptor. Called on any thread."""


class FarEnd:
    """``on_ready`` and ``on_line`` (one line at a time) are called on threads of this object, ``on_ended`` last.

    Until it is ready, what comes over standard error is kept: the reason why it may never be.
    """

    def __init__(
        self,
        label: str,
        command: list[str],
        order: FarOrder,
        write: Write,
        *,
        on_ready: Callable[[], None],
        on_line: Callable[[str], None],
        on_ended: Callable[[int], None],
    ) -> None:
        """Raises ValueError if there is no such command."""
        self._order, self._write = order, write
        self._on_ready, self._on_line, self._on_ended = on_ready, on_line, on_ended
        self._prefix = f"[{label}] ".encode()
        self._lock = Lock()  # guards what follows: two threads read
        self._is_ready = False
        self._kept: list[bytes] = []
        try:
            # a session of its own: Ctrl-C is for us, the far end is told by us, and ssh finds no terminal to ask at
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            reason = start_error(error, command[0], os.environ).strerror
            raise ValueError(f"--ssh: {command[0]} cannot be started: {reason}") from error
        WAITED_FOR.add(self._process.pid)
        self._readers = [
            self._thread(self._read, 1, self._process.stdout),
            self._thread(self._read, 2, self._process.stderr),
        ]
        self._thread(self._attend)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def last_words(self) -> str:
        """The last line that it wrote to standard error before it was ready."""
        with self._lock:
            lines = [
                line for piece in self._kept for line in piece.decode(errors="replace").splitlines() if line.strip()
            ]
        return lines[-1].strip() if lines else ""

    def tell(self, line: bytes) -> None:
        """Only once it is ready: before that, the order may be on its way."""
        with suppress(OSError, ValueError):  # it has ended, or is to end: its status says why
            assert self._process.stdin is not None
            self._process.stdin.write(line + b"\n")

    def beat(self) -> None:
        self.tell(BEAT)

    def cut(self) -> None:
        """End the connection at once. What runs there sees that."""
        self._process.kill()

    def _thread(self, work: Callable[..., None], *arguments: object) -> Thread:
        thread = Thread(target=work, args=arguments, daemon=True, name=f"multiworld-far-end-{self._process.pid}")
        thread.start()
        return thread

    def _attend(self) -> None:
        self.tell(json.dumps(to_json(self._order)).encode())
        status = self._process.wait()
        WAITED_FOR.discard(self._process.pid)
        for reader in self._readers:
            reader.join(LAST_LINES_S)
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        self._on_ended(status)

    def _read(self, descriptor: int, stream: IO[bytes]) -> None:
        buffer, labeller = LineBuffer(), Labeller(self._prefix)
        with stream:
            while piece := stream.read(PIECE):
                self._pass_on(descriptor, buffer.feed(piece), labeller)
        self._pass_on(descriptor, buffer.take(), labeller)

    def _pass_on(self, descriptor: int, text: bytes, labeller: Labeller) -> None:
        if not self._is_ready and descriptor == 1:
            text = self._without_ready_line(text)
        for line in text.splitlines():
            self._on_line(line.decode(errors="replace"))
        with self._lock:
            if not self._is_ready and descriptor == 2:
                self._kept = [*self._kept, text][-KEPT:]
                return
        self._write(descriptor, labeller.label(text))

    def _without_ready_line(self, text: bytes) -> bytes:
        """A login shell there may write before it."""
        before, found, after = text.partition(self._order.ready.encode() + b"\n")
        if not found:
            return text
        with self._lock:
            self._is_ready = True
            kept, self._kept = b"".join(self._kept), []
        self._on_ready()
        if kept:
            self._write(2, Labeller(self._prefix).label(kept))
        return before + after
