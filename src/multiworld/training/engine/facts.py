"""What every member says when its gradients of a step are complete, and is heard by all before the step counts. Pure.

The facts of all members reach each member in one collective: who has them all knows that every member's gradients are
complete. All decisions of a step are functions of these facts, in the order of the members, so all decide alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from ...wire.messages import message, sparse
from ..copies.plan import CopyFacts


@message("facts")
@sparse
@dataclass(frozen=True, kw_only=True)
class Facts:
    """Of one member, at the end of one step, before its optimizer runs.

    ``done``: the micro-batches that it has computed. ``values``: what the program recorded, for each of ``done`` in
    that order; what is not finite is text (``"nan"``, ``"inf"``, ``"-inf"``), which ``float`` reads, too. ``seconds``:
    its own time by part, until it handed its gradients over. ``digests``: by name, of what must be equal on all members
    now. ``is_leaving``: it was asked to go, and does so after this step. ``newcomers``: ids of processes that wait to
    be admitted, as far as it knows. ``is_ready``: it has the state, and may be given micro-batches. ``save``: a
    checkpoint after this step was asked for. ``unused``: parameters without a gradient here; ``changed``: buffers that
    a forward has changed here; by index. ``late``: buckets that got gradients after their reduction had begun.
    ``inner_seconds``: if members meet in rounds, ``seconds`` of each of the last inner steps, by part; each had the
    micro-batches in ``done``. ``member``: its id. ``miscomputed``: the first parameter whose gradient was another one
    when a micro-batch was computed a second time. ``squares``: sums of squares of summed gradients, where a norm over
    all members is wanted. ``copies``: how its snapshots in memory stand; None without them. ``sent``: how many of its
    moves beside the steps it has begun, with the state before this step or an earlier one; ``got``: how many moves to
    it have ended.
    """

    step: int
    member: str = ""
    done: tuple[int, ...] = ()
    values: Mapping[str, tuple[float | str, ...]] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    inner_seconds: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    is_leaving: bool = False
    newcomers: tuple[str, ...] = ()
    is_ready: bool = True
    is_finite: bool = True
    save: bool = False
    unused: tuple[int, ...] = ()
    late: tuple[int, ...] = ()
    changed: tuple[int, ...] = ()
    miscomputed: str = ""
    squares: tuple[float, ...] = ()
    copies: CopyFacts | None = None
    sent: int = 0
    got: int = 0


class MoreFacts(TypedDict, total=False):
    """Fields of ``Facts`` that the parts beside the engine fill in."""

    digests: Mapping[str, str]
    miscomputed: str
    is_finite: bool
    save: bool
    copies: CopyFacts
