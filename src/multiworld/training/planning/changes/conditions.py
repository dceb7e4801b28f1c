"""Under which conditions a change of the plan is chosen, and what a change costs."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Policy(enum.Enum):
    """How a plan follows from the one before."""

    START = "start"
    REINSTANTIATE = "re-instantiate"  # the fastest pipelines of all that are left
    BORROW = "borrow"  # a broken pipeline gets nodes of the largest ones
    MERGE = "merge"  # what is left of a broken pipeline joins others
    REROUTE = "reroute"  # peers of the lost node take over its micro-batches; nothing is moved


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """``tolerate``: any so many losses, as long as there are nodes for it. ``num_micro_batches``: of a step, in all.

    ``expected_s``: the time until the next change. ``bytes_per_s``: of one member's link, each way. ``form_s``: what
    every change takes until members can compute again, besides moves. ``redo_s``: of the step that was lost.
    ``exchange_s``: of gradients among pipelines. ``hosts``: of members, as far as they are known. ``divide_layers``:
    a layer may come from several members in parts. ``split_backward``: rerouted work may put off gradients of weights,
    but where activations are computed again. ``allowed``: the policies that may be chosen. ``operation_s``: what it
    takes to simulate one operation of rerouted pipelines, if the members have to wait for the plan; 0: it is made in
    advance.
    """

    tolerate: int
    num_micro_batches: int
    expected_s: float = 3600.0
    bytes_per_s: float = float("inf")
    form_s: float = 0.0
    redo_s: float = 0.0
    exchange_s: float = 0.0
    hosts: Mapping[str, str] = field(default_factory=dict)
    divide_layers: bool = True
    split_backward: bool = False
    allowed: frozenset[Policy] = frozenset(Policy)
    operation_s: float = 0.0

    def __post_init__(self) -> None:
        if self.tolerate < 0 or self.num_micro_batches < 1:
            raise ValueError(
                f"to tolerate {self.tolerate} losses with {self.num_micro_batches} micro-batches: expected at least 0 "
                "and at least 1"
            )
        if (
            min(self.expected_s, self.form_s, self.redo_s, self.exchange_s, self.operation_s) < 0
            or self.bytes_per_s <= 0
        ):
            raise ValueError("times of a change: expected at least 0 s, and more than 0 bytes per second")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """``change_s``: until the first step begins. ``busiest_bytes``: the most that one member sends or receives.

    ``steps``: how many are done until the next change is expected; negative if the change takes longer than that.
    """

    change_s: float
    iteration_s: float
    moved_bytes: int
    busiest_bytes: int
    steps: float

    @classmethod
    def of(
        cls, conditions: Conditions, iteration_s: float, moved_bytes: int, busiest_bytes: int, *, plan_s: float = 0.0
    ) -> Cost:
        """``plan_s``: what it takes to make the plan, beyond what all plans take."""
        change_s = conditions.form_s + conditions.redo_s + busiest_bytes / conditions.bytes_per_s + plan_s
        return cls(
            change_s=change_s,
            iteration_s=iteration_s,
            moved_bytes=moved_bytes,
            busiest_bytes=busiest_bytes,
            steps=(conditions.expected_s - change_s) / iteration_s,
        )
