"""Decide how alarming the failures of the last minute are, and which error an operator is shown. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..control.status import GatewayStatus, ReplicaStatus
from ..errors import StageFailedError
from ..member.failure import Failure

BAD_SHARE = 0.05  # of the requests; any failure at all is worth a warning


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """``percent``: of the requests; ``text``: a sentence."""

    tone: str
    percent: str
    text: str


@dataclass(frozen=True, kw_only=True)
class LastFailure(Failure):
    """``member``: in which it came last; ``count``: in all of them."""

    member: str


def trouble(num_answered: int, num_failed: int) -> Trouble | None:
    """Return the tone and a sentence; None if nothing failed."""
    if num_failed <= 0:
        return None
    total = max(num_answered, 0) + num_failed
    share = num_failed / total
    percent = f"{100 * share:.{0 if share >= 0.1 else 1}f} %"
    return Trouble(
        tone="bad" if share >= BAD_SHARE else "warn",
        percent=percent,
        text=f"{num_failed:,} of {total:,} requests failed in the last minute ({percent})",
    )


def last_failure(members: Iterable[ReplicaStatus | GatewayStatus]) -> LastFailure | None:
    """Return the error that came last in one of these, with its number in all of them; None if there is none."""
    failures = [(each.failure, each.id) for each in members if each.failure is not None]
    if not failures:
        return None
    last, member = max(failures, key=lambda each: each[0].at)
    count = sum(failure.count for failure, _ in failures if failure.kind == last.kind)
    return LastFailure(**{**vars(last), "count": count}, member=member)


def what_failed(told: LastFailure | None, of_stages: Iterable[LastFailure | None]) -> LastFailure | None:
    """Return the last failure of the gateways (``told``), or that of the stage which it came from."""
    known = [failure for failure in of_stages if failure is not None]
    if known and (told is None or told.kind == StageFailedError.__name__):
        return max(known, key=lambda each: each.at)
    return told
