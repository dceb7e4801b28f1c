"""Decide what is noted on a traced request on its way: who was sent it when, and who executed it how. Pure.

The notes travel in the item's ``extra``, which is empty otherwise. That is shared with copies of the item, so each note
makes a new one. Times are Unix times, of the host that notes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["HOPS", "executed", "merged", "sent"]

HOPS = "hops"
"""The name of the notes in ``extra``; a request without it is not traced."""
MAX_HOPS = 256

Extra = Mapping[str, Any]


def sent(
    extra: Extra, stage: str, peer: str, *, at: float, attempt: int, holders: Iterable[str] = ()
) -> dict[str, Any]:
    """Note that a stage's replica is sent the request. ``holders``: those of the stage that still live.

    If it was sent to another one before, that one is lost, or suspect if it lives.
    """
    former = [hop["to"] for hop in extra[HOPS] if hop.get("to") and hop["stage"] == stage and hop["attempt"] == attempt]
    hop: dict[str, Any] = {"to": peer, "stage": stage, "at": at, "attempt": attempt}
    if former:
        hop["why"] = "suspect" if former[-1] in holders else "lost"
    return _with(extra, hop)


def executed(
    extra: Extra,
    stage: str,
    replica: str,
    *,
    arrived: float,
    began: float,
    ended: float,
    batch: int,
    version: int,
    error: str = "",
) -> dict[str, Any]:
    """Note that a replica has executed the request, together with others if ``batch`` is above 1."""
    hop = {
        "by": replica,
        "stage": stage,
        "arrived": arrived,
        "began": began,
        "ended": ended,
        "batch": batch,
        "version": version,
    }
    return _with(extra, {**hop, "error": error} if error else hop)


def merged(extras: Sequence[Extra]) -> list[dict[str, Any]]:
    """Return the notes of the parts of one request, each once: what came before they were parted is in all of them."""
    hops: list[dict[str, Any]] = []
    for extra in extras:
        hops += [hop for hop in extra.get(HOPS, ()) if hop not in hops]
    return hops


def _with(extra: Extra, hop: dict[str, Any]) -> dict[str, Any]:
    return {**extra, HOPS: [*extra[HOPS][-MAX_HOPS:], hop]}
