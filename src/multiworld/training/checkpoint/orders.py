"""What the training process and the process that writes its checkpoints say to each other. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ...wire.messages import MessageSet, message

MAX_REASON = 4000


class UnfinishedError(Exception):
    """A checkpoint cannot be made whole: the message says why."""


@message("write")
@dataclass(frozen=True, kw_only=True)
class Write:
    """Write this checkpoint. The memory that the tensors lie in, and what to write of it, come as descriptors.

    ``writer``: our place among ``num_writers``; the first one makes it whole.
    """

    directory: str
    job: str
    step: int
    attempt: str
    writer: int
    num_writers: int
    keep: int
    sync: bool
    timeout_s: float


@message("gone")
@dataclass(frozen=True, kw_only=True)
class WritersGone:
    """These writers of the attempt write no more."""

    attempt: str
    writers: tuple[int, ...]


@message("written")
@dataclass(frozen=True, kw_only=True)
class Written:
    """Our part is written; ``path`` and ``size_bytes`` if that made the checkpoint whole.

    ``problem``: the checkpoint is whole, but older ones could not be removed.
    """

    attempt: str
    path: str = ""
    size_bytes: int = 0
    problem: str = ""


@message("failed")
@dataclass(frozen=True, kw_only=True)
class WriteFailed:
    attempt: str
    reason: str


Order = Write | WritersGone
ORDERS: MessageSet[Order] = MessageSet("orders of a checkpoint", Order, tag="say")

Report = Written | WriteFailed
REPORTS: MessageSet[Report] = MessageSet("reports of a checkpoint", Report, tag="say")
