"""Decide how alarming the failures of the last minute are, and which error an operator is shown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import StageFailedError

__all__ = ["BAD_SHARE", "last_failure", "trouble", "what_failed"]

BAD_SHARE = 0.05  # of the requests; any failure at all is worth a warning


def trouble(num_answered: int, num_failed: int) -> dict[str, Any] | None:
    """Return the tone and a sentence; None if nothing failed."""
    if num_failed <= 0:
        return None
    total = max(num_answered, 0) + num_failed
    share = num_failed / total
    percent = f"{100 * share:.{0 if share >= 0.1 else 1}f} %"
    return {
        "tone": "bad" if share >= BAD_SHARE else "warn",
        "percent": percent,
        "text": f"{num_failed:,} of {total:,} requests failed in the last minute ({percent})",
    }


def last_failure(members: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the error that came last in one of these, with its number in all of them; None if there is none."""
    failures = [(member["id"], member["failure"]) for member in members if member.get("failure")]
    if not failures:
        return None
    member, last = max(failures, key=lambda each: float(each[1]["at"]))
    count = sum(int(failure["count"]) for _, failure in failures if failure["kind"] == last["kind"])
    return {**last, "member": member, "count": count}


def what_failed(told: Mapping[str, Any] | None, stages: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the last failure of the gateways (``told``), or that of the stage which it came from."""
    of_stages = [stage["failure"] for stage in stages if stage["failure"]]
    if of_stages and (told is None or told["kind"] == StageFailedError.__name__):
        last: Mapping[str, Any] = max(of_stages, key=lambda each: float(each["at"]))
        return last
    return told
