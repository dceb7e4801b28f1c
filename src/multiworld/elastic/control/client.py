"""Ask an agent about its job, from any process: a few blocking calls. Imports no torch."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from ...errors import MultiworldError, ProtocolError
from ...wire.connection import Connection
from ...wire.dialer import dial
from ...wire.frames import Header, Kind, pack_frame
from ...wire.handshake import decode_fields, encode_fields
from ...wire.operation import Operation, pass_on
from ...wire.progress import ProgressThread
from ...wire.waiting import wait_blocking
from .names import find_names, short_job

__all__ = ["ControlError", "Conversation", "Session", "read_lines"]

PURPOSE = "control"
DIAL_S = 5.0
ANSWER_S = 15.0
SOCKETS = Path("/proc/net/unix")


class ControlError(MultiworldError):
    """The job could not be asked, or refused what was asked for (``reason``)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class Conversation:
    """A connection sink: questions to one agent, and its answers. From any thread."""

    def __init__(self) -> None:
        self._connection: Connection | None = None
        self._takers: dict[int, Callable[[dict[str, Any]], None]] = {}
        self._lost: str | None = None

    def ask(self, timeout_s: float = ANSWER_S, **question: Any) -> dict[str, Any]:
        """Return the answer. Raises ControlError if there is none, or a refusal."""
        answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.start(answers.put, **question)
        try:
            return _checked(answers.get(timeout=timeout_s))
        except queue.Empty as error:
            raise ControlError(f"the agent did not answer within {timeout_s:g} s") from error

    def parts(self, **question: Any) -> Iterator[dict[str, Any]]:
        """Yield the parts of an answer as they come, until it ends. Raises ControlError."""
        answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.start(answers.put, **question)
        while True:
            payload = answers.get()
            if "part" not in payload:
                _checked(payload)
                return
            yield payload["part"]

    def start(self, take: Callable[[dict[str, Any]], None], **question: Any) -> None:
        """Have ``take`` called, on the session's thread, with each ``part``, then ``answer``, ``error`` or ``lost``."""
        number = len(self._takers) + 1
        self._takers[number] = take
        connection = self._connection
        if connection is None or self._lost is not None:
            take({"lost": self._lost or "it is not connected"})
        else:
            fields = {"say": "ask", "number": number, "question": question}
            connection.send(pack_frame(Kind.AGENT_NOTE, encode_fields(fields)))

    @property
    def is_lost(self) -> bool:
        """Whether the agent has ended the connection, or cannot be reached any more."""
        return self._lost is not None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.abort()

    # connection sink
    def opened(self, connection: Connection) -> None:
        self._connection = connection

    def begin(self, header: Header, meta: bytes) -> memoryview | None:
        if header.payload_bytes or header.kind != Kind.AGENT_NOTE:
            raise ProtocolError(f"frame kind {header.kind} from the agent")
        return None

    def end(self, header: Header, meta: bytes) -> None:
        note = decode_fields(meta)
        take = self._takers.get(note.get("number", 0))
        if take is not None:
            take(note)

    def lost(self, reason: str) -> None:
        self._lost = reason
        for take in list(self._takers.values()):
            take({"lost": reason})


class Session:
    """A context manager: opens conversations, and ends them with their thread."""

    def __init__(self) -> None:
        self._loop = ProgressThread("multiworld-control")
        self._conversations: list[Conversation] = []

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for conversation in self._conversations:
            conversation.close()
        self._loop.stop()

    def connect(self, host: str, port: int, token: str) -> Conversation:
        """Raises ControlError."""
        try:
            return self._connect(host, port, token)
        except MultiworldError as error:
            raise ControlError(str(error)) from error

    def connect_here(self, job: str | None) -> Conversation:
        """Connect to an agent of this host and user; of ``job``, or of the only job there is. Raises ControlError."""
        found = find_names(SOCKETS.read_text(errors="replace"), os.geteuid())
        if job is not None:
            names = found.get(short_job(job), [])
            found = {job: names} if names else {}
        if not found:
            raise ControlError(
                f"no agent of {'a job' if job is None else f'the job {job!r}'} runs on this host for this user: ask "
                "with --endpoint HOST:PORT, the address of any agent"
            )
        if len(found) > 1:
            raise ControlError(f"several jobs run here: choose one with --job: {', '.join(sorted(found))}")
        ((_, names),) = found.items()
        failure: MultiworldError | None = None
        for name in names:
            try:
                return self._connect(name, 0, "")
            except MultiworldError as error:  # it may just be ending; its neighbour may not
                failure = error
        raise ControlError(str(failure))

    def _connect(self, host: str, port: int, token: str) -> Conversation:
        conversation = Conversation()
        self._conversations.append(conversation)
        connected: Operation[Connection] = Operation()

        def call() -> None:  # on the loop's thread: else it may see that nobody listens while we still begin
            fields = {"purpose": PURPOSE}
            pass_on(dial(self._loop, host, port, fields, token.encode(), conversation, timeout_s=DIAL_S), connected)

        self._loop.call_soon(call)
        wait_blocking(connected)
        return conversation


def read_lines(host: str, port: int, token: bytes, rank: int, last: int) -> list[str]:
    """Return the last lines of each stream of a rank, from the agent of its host. Raises ControlError."""
    with Session() as session:
        answer = session.connect(host, port, token.decode()).ask(ask="logs", rank=rank, last=last, follow=False)
    return [str(line) for line in answer.get("lines", [])]


def _checked(payload: dict[str, Any]) -> dict[str, Any]:
    if "lost" in payload:
        raise ControlError(f"the agent that was asked is gone: {payload['lost']}")
    if "error" in payload:
        raise ControlError(str(payload["error"]))
    answer = payload.get("answer")
    if not isinstance(answer, dict):
        raise ControlError("the agent's answer makes no sense: is it of another version?")
    return answer
