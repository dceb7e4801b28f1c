"""How much throughput is left after losses, and whether the policy that gets most done was chosen."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

from multiworld.bench.report import Bound, Line
from multiworld.training.planning.changes.conditions import Conditions, Policy
from multiworld.training.planning.changes.reconfiguration import Reconfiguration, reconfigure, start
from multiworld.training.planning.changes.rerouting import shared_steps
from multiworld.training.planning.changes.shared_steps import Place, SharedOperation, SharedStep
from multiworld.training.planning.operations import Kind
from multiworld.training.planning.plan import Plan
from multiworld.training.planning.templates import Templates
from multiworld.training.planning.timing import Timing

from .reconfigured import sized_templates

__all__ = ["policies"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A plan, some members of it that are lost at once, and the conditions."""

    made: Templates
    conditions: Conditions
    plan: Plan
    lost: tuple[str, ...]

    def after(self, *allowed: Policy) -> Reconfiguration | None:
        conditions = replace(self.conditions, allowed=frozenset(allowed or Policy))
        found = reconfigure(self.plan, lost=self.lost, templates=self.made, conditions=conditions)
        if not isinstance(found, Reconfiguration) or (allowed and found.policy not in allowed):
            return None
        return found


SETTINGS = (
    ("", 16, False, 0.95),
    (", four micro-batches a node", 4, False, None),
    (", memory for two micro-batches in flight", 16, True, None),
)
"""Name, micro-batches a node, whether memory is tight, and the bound.

A few micro-batches cannot be divided among fewer nodes in proportion; and where the smallest pipelines have no memory
for what 1F1B holds, fewer nodes are less than proportionally fast in any plan with enough replicas.
"""


def policies(seed: int) -> list[Line]:
    """Lose one or two of 8 to 32 nodes, with short and long times until the next loss, and fast and slow links."""
    lines = []
    every: list[Case] = []
    for name, per_node, is_tight, limit in SETTINGS:
        cases = list(_cases(random.Random(seed), 50, per_node, is_tight=is_tight))
        left = [share for case in cases if (share := _share_left(case)) is not None]
        lines.append(
            Line(
                name=f"throughput after losses, against its proportional share{name}",
                unit="x",
                value=min(left),
                bound=None if limit is None else Bound(at="least", limit=limit),
                details={"changes": float(len(left)), "median": median(left)},
                note="worst change, predicted",
            )
        )
        every += cases[:25]
    return [*lines, *_chosen(every)]


def _share_left(case: Case) -> float | None:
    """Return the throughput after the losses against the nodes' share in it; None where a checkpoint is needed."""
    long = replace(case, conditions=replace(case.conditions, expected_s=1e12)).after()
    if long is None:
        return None
    return case.plan.iteration_s / long.plan.iteration_s / (1 - len(case.lost) / len(case.plan.members))


def _chosen(cases: list[Case]) -> list[Line]:
    worse, errors = [], []
    chosen: Counter[Policy] = Counter()
    for case in cases:
        best = case.after()
        if best is None:
            continue
        chosen[best.policy] += 1
        tried = [each for policy in Policy if (each := case.after(policy)) is not None]
        lasting = {each.policy: _lasts_s(each, case) for each in (best, *tried)}
        worse.append(lasting[best.policy] / min(lasting.values()))
        errors += [abs(each.plan.iteration_s / _simulated_s(each.plan, case) - 1) for each in tried]
    return [
        Line(
            name="time that the chosen policy takes, against the best of all, each simulated",
            unit="x",
            value=max(worse),
            bound=Bound.at_most(1.02),
            details={each.value: float(number) for each, number in chosen.items()},
            note="worst change; the change, then the steps that are expected until the next one",
        ),
        Line(
            name="predicted against simulated step, all policies",
            unit="%",
            value=100 * max(errors),
            bound=Bound.at_most(2),
            details={"plans": float(len(errors))},
            note="worst plan; operation by operation, in the orders that nodes follow",
        ),
    ]


def _cases(rng: random.Random, count: int, per_node: int, *, is_tight: bool) -> Iterator[Case]:
    for _ in range(count):
        num_nodes, tolerate = rng.randint(8, 32), rng.randint(0, 2)
        smallest = rng.randint(1, max(1, num_nodes // (tolerate + 2)))
        in_flight = 2 if is_tight else 2 * smallest
        made = sized_templates(100, smallest, num_nodes, tolerate, rng.randrange(99), in_flight=in_flight)
        conditions = Conditions(
            tolerate=tolerate,
            num_micro_batches=per_node * num_nodes,
            expected_s=rng.choice((1e3, 1e4, 1e6)),
            bytes_per_s=rng.choice((1e6, 1e8, 1e9)),
            form_s=0.2,
            split_backward=rng.random() < 0.5,
        )
        plan = start([f"m{index:02}" for index in range(num_nodes)], made, conditions).plan
        lost = tuple(rng.sample(plan.members, rng.randint(1, max(1, tolerate))))
        if num_nodes - len(lost) >= made.smallest:
            yield Case(made=made, conditions=conditions, plan=plan, lost=lost)


def _lasts_s(after: Reconfiguration, case: Case) -> float:
    """Return how long the change and as many steps take as the plan before would do until the next change."""
    steps = case.conditions.expected_s / case.plan.iteration_s
    return after.cost.change_s + steps * _simulated_s(after.plan, case)


def _simulated_s(plan: Plan, case: Case) -> float:
    """Return what a step takes: every operation of every pipeline, one after the other."""
    steps = shared_steps(plan, case.made, split_backward=case.conditions.split_backward)
    shared = {index for step in steps for index in step.counts}
    taken_s = [_replayed_s(each) for each in steps]
    for index, each in enumerate(plan.pipelines):
        if index not in shared:
            nodes = [case.made.node] * each.template.num_nodes
            taken_s.append(Timing.of(case.made.profile, nodes, each.template).iteration_s(each.num_micro_batches))
    return max(taken_s)


def _replayed_s(step: SharedStep) -> float:
    """Follow the orders of the nodes, and nothing else: each operation begins once what it needs is there."""
    durations_s = {
        (place, each[:4]): each.end_s - each.begin_s for place, order in step.simulated().items() for each in order
    }
    orders: dict[Place, list[SharedOperation]] = {place: list(order) for place, order in step.simulated().items()}
    free_s: dict[Place, float] = defaultdict(float)
    ends_s: dict[tuple[Kind, int, int, int], float] = {}
    while any(orders.values()):
        before = len(ends_s)
        for place, order in orders.items():
            while order and (ready_s := _ready_s(step, order[0], ends_s)) is not None:
                operation = order.pop(0)[:4]
                free_s[place] = max(free_s[place], ready_s) + durations_s[place, operation]
                ends_s[operation] = free_s[place]
        assert len(ends_s) > before, "the orders stand still"
    return max(ends_s.values())


def _ready_s(
    step: SharedStep, operation: SharedOperation, ends_s: dict[tuple[Kind, int, int, int], float]
) -> float | None:
    kind, pipeline, stage, micro_batch = operation[:4]
    transfers_s = step.timing.transfers_s
    source: tuple[Kind, int, int, int]
    if kind is Kind.FORWARD and stage == 0:
        return 0.0
    if kind is Kind.FORWARD:
        source, transfer_s = (kind, pipeline, stage - 1, micro_batch), transfers_s[stage - 1]
    elif kind is Kind.BACKWARD and stage < len(transfers_s):
        source, transfer_s = (kind, pipeline, stage + 1, micro_batch), transfers_s[stage]
    else:
        source, transfer_s = (
            (Kind.FORWARD if kind is Kind.BACKWARD else Kind.BACKWARD, pipeline, stage, micro_batch),
            0.0,
        )
    return ends_s[source] + transfer_s if source in ends_s else None
