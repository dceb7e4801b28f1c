"""Ask an agent about its job, from any process: a few blocking calls. Imports no torch."""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from ...errors import MessageError, MultiworldError, ReasonError
from ...process.facts import unix_sockets
from ...process.link import CallRefusedError, ControlLink, LinkLostError
from ...process.link.blocking import BlockingLinks, wait_for
from .messages import PURPOSE, QUESTIONS, Lines, LogsOf, Question
from .names import find_names, short_job

ANSWER_S = 15.0

A = TypeVar("A")


class ControlError(ReasonError):
    """The job could not be asked, or refused what was asked for (``reason``)."""


class Conversation:
    """Questions to one agent, and its answers. From any thread."""

    def __init__(self) -> None:
        self.link: ControlLink[Question, None] = ControlLink(QUESTIONS, None)

    def ask(self, question: Question, answer: type[A], timeout_s: float = ANSWER_S) -> A:
        """Return the answer. Raises ControlError if there is none, or a refusal."""
        with _explained():
            return wait_for(self.link.ask(question, answer), timeout_s)

    def parts(self, question: Question, answer: type[A]) -> Iterator[A]:
        """Yield the parts of an answer as they come, until it ends. Raises ControlError."""
        parts: queue.SimpleQueue[A | None] = queue.SimpleQueue()
        asked = self.link.ask(question, answer, parts.put)
        asked.add_callback(lambda _: parts.put(None))
        while (part := parts.get()) is not None:
            yield part
        with _explained():
            asked.result()

    @property
    def is_lost(self) -> bool:
        """Whether the agent has ended the connection, or cannot be reached any more."""
        return self.link.is_lost

    def close(self) -> None:
        self.link.abort()


class Session:
    """A context manager: opens conversations, and ends them with their thread."""

    def __init__(self) -> None:
        self._links = BlockingLinks("multiworld-control")

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self._links.__exit__(*error)

    def connect(self, host: str, port: int, token: str) -> Conversation:
        """Raises ControlError."""
        try:
            return self._connect(host, port, token)
        except MultiworldError as error:
            raise ControlError(str(error)) from error

    def connect_here(self, job: str | None) -> Conversation:
        """Connect to an agent of this host and user; of ``job``, or of the only job there is. Raises ControlError."""
        found = find_names(unix_sockets(), os.geteuid())
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

    def connect_to_all_here(self) -> Iterator[Conversation]:
        """Connect to one agent of each job of this host and user, one after another, as far as they answer."""
        for names in find_names(unix_sockets(), os.geteuid()).values():
            for name in names:
                try:
                    yield self._connect(name, 0, "")
                except MultiworldError:
                    continue
                break

    def _connect(self, host: str, port: int, token: str) -> Conversation:
        conversation = Conversation()
        self._links.connect(host, port, token, PURPOSE, conversation.link)
        return conversation


def read_lines(host: str, port: int, token: bytes, rank: int, last: int) -> list[str]:
    """Return the last lines of each stream of a rank, from the agent of its host. Raises ControlError."""
    with Session() as session:
        return list(session.connect(host, port, token.decode()).ask(LogsOf(rank=rank, last=last), Lines).lines)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise ControlError(f"the agent did not answer: {error}") from None
    except LinkLostError as error:
        raise ControlError(f"the agent that was asked is gone: {error.reason}") from None
    except CallRefusedError as error:
        raise ControlError(error.reason) from None
    except MessageError as error:
        raise ControlError(f"the agent's answer makes no sense: is it of another version? {error}") from None
