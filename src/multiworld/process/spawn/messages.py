"""What the agent and its fork server say to each other, and a spare that cannot become a worker. Pure values."""

from __future__ import annotations

from dataclasses import dataclass

from ...wire.messages import MessageSet, message


@message("spawn")
@dataclass(frozen=True, kw_only=True)
class Spawn:
    """Start the worker ``number``. The descriptors that come with it are ``num_fds``."""

    number: int
    num_fds: int


@message("prepare")
@dataclass(frozen=True, kw_only=True)
class Prepare:
    """Fork so many processes now, for orders that will follow."""

    num_workers: int


@message("watch")
@dataclass(frozen=True, kw_only=True)
class Watch:
    """Kill the process groups of these workers when the agent ends."""

    pids: tuple[int, ...]


Request = Spawn | Prepare | Watch
REQUESTS: MessageSet[Request] = MessageSet("requests to a fork server", Request, tag="do")


@message("ready")
@dataclass(frozen=True, kw_only=True)
class Ready:
    """It has imported what it should."""


@message("warning")
@dataclass(frozen=True, kw_only=True)
class Warned:
    """Something that people should know, and that stops nothing."""

    text: str


@message("useless")
@dataclass(frozen=True, kw_only=True)
class Useless:
    """It cannot import what it should, and ends."""

    reason: str


@message("forked")
@dataclass(frozen=True, kw_only=True)
class Forked:
    """A process that may become a worker. The agent, whose child it is, reaps it."""

    pid: int


@message("died")
@dataclass(frozen=True, kw_only=True)
class Died:
    """One of these has ended, or must end, without having become one."""

    pid: int


@message("launched")
@dataclass(frozen=True, kw_only=True)
class Launched:
    """The worker ``number`` runs."""

    number: int
    pid: int


@message("not started")
@dataclass(frozen=True, kw_only=True)
class NotStarted:
    """Why a process cannot become a worker: an OSError, or without ``errno`` another exception."""

    errno: int | None
    text: str
    filename: str | None = None

    def as_error(self) -> OSError:
        if self.errno is None:
            return OSError(self.text)
        return OSError(self.errno, self.text, self.filename)  # FileNotFoundError and so on, by the number


@message("failed")
@dataclass(frozen=True, kw_only=True)
class Failed:
    """The worker ``number`` cannot be started. ``pid``: of the process that was to become it, if there was one."""

    number: int
    pid: int | None
    why: NotStarted


Answer = Ready | Warned | Useless | Forked | Died | Launched | Failed
ANSWERS: MessageSet[Answer] = MessageSet("answers of a fork server", Answer, tag="told")
REFUSALS: MessageSet[NotStarted] = MessageSet("refusals of a spare", NotStarted, tag="told")
