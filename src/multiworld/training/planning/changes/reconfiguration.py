"""What follows when members are lost or come: the plan that gets most done until the next change is expected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..instantiation import Instantiation, divide_micro_batches, instantiate
from ..plan import LOST, Move, Plan
from ..template_set import TemplateSet
from .conditions import Conditions, Cost, Policy
from .moves import busiest_bytes, moves_to
from .placement import Shape, place
from .rerouting import reroute
from .shapes import borrowed, merged
from .shared_steps import SharedStep


@dataclass(frozen=True, kw_only=True)
class Reconfiguration:
    """``moves``: before the first step. ``considered``: what each policy would have cost; without those that could not
    be the best.

    ``wanted``: how many losses were to be tolerated; ``plan.tolerates`` is less where there are too few nodes.
    ``shared``: of a rerouted plan, the steps of pipelines that compute for each other: their members' orders.
    """

    plan: Plan
    moves: tuple[Move, ...]
    policy: Policy
    cost: Cost
    wanted: int
    considered: Mapping[Policy, Cost] = field(default_factory=dict)
    shared: tuple[SharedStep, ...] = ()

    @property
    def is_degraded(self) -> bool:
        return self.plan.tolerates < self.wanted


@dataclass(frozen=True, kw_only=True)
class CheckpointNeeded:
    """No member that is alive has ``layers``: they come from a checkpoint. ``restart``: the plan with which to load it.

    All of its members load all of their layers, as none may have other steps behind it than the others.
    """

    layers: tuple[int, ...]
    restart: Reconfiguration


def start(members: Sequence[str], templates: TemplateSet, conditions: Conditions) -> Reconfiguration:
    """Return the first plan; nothing has to be moved. Raises as ``instantiate``.

    Pipelines have members that follow each other, host by host in the order in which hosts come first: neighbours tend
    to be cut off from the others together, and have all layers then.
    """
    hosts = [conditions.hosts.get(each, each) for each in members]
    first = {host: index for index, host in reversed([*enumerate(hosts)])}
    ordered = [member for _, member in sorted(zip(hosts, members, strict=True), key=lambda each: first[each[0]])]
    found = instantiate(
        templates,
        len(ordered),
        tolerate=conditions.tolerate,
        num_micro_batches=conditions.num_micro_batches,
        exchange_s=conditions.exchange_s,
    )
    change = _Change(templates, conditions, tuple(ordered), {}, found)
    return change.placed(Policy.START, _shapes(templates, found), found.iteration_s, with_moves=False)


def reconfigure(
    plan: Plan,
    *,
    templates: TemplateSet,
    conditions: Conditions,
    lost: Collection[str] = (),
    joined: Collection[str] = (),
    prefetched: Mapping[str, frozenset[int]] | None = None,
    held: Mapping[str, frozenset[int]] | None = None,
) -> Reconfiguration | CheckpointNeeded:
    """Return the plan without ``lost`` and with ``joined``, what it needs moved, and why it was chosen.

    ``prefetched``: layers that members have got in advance, up to date. ``held``: what members have, if that is not
    what the plan gives them: it may not have been carried out. All members that call this with the same arguments get
    the same result. Raises TooFewNodesError below the smallest template, GlobalBatchTooSmallError.
    """
    gone = frozenset(lost)
    present = [*plan.members, *plan.idle]
    alive = [*(each for each in present if each not in gone), *sorted(set(joined) - set(present) - gone)]
    has = plan.holdings() if held is None else held
    held = {each: layers for each, layers in has.items() if each not in gone}
    for each, layers in (prefetched or {}).items():
        if each in alive:
            held[each] = held.get(each, frozenset()) | layers
    missing = set(range(templates.profile.num_layers)) - {layer for layers in held.values() for layer in layers}
    if missing:
        return CheckpointNeeded(layers=tuple(sorted(missing)), restart=start(alive, templates, conditions))
    found = instantiate(
        templates,
        len(alive),
        tolerate=conditions.tolerate,
        num_micro_batches=conditions.num_micro_batches,
        exchange_s=conditions.exchange_s,
    )
    return _best(_Change(templates, conditions, tuple(alive), held, found).candidates(plan, gone))


def _best(made: Sequence[Reconfiguration]) -> Reconfiguration:
    considered = {each.policy: each.cost for each in made}
    best = max(made, key=lambda each: (each.cost.steps, -each.cost.moved_bytes))
    if best.cost.steps <= 0:  # the next change comes first, wherever we begin
        best = min(made, key=lambda each: each.cost.change_s + each.cost.iteration_s)
    return replace(best, considered=considered)


@dataclass(frozen=True)
class _Change:
    """``found``: the fastest pipelines of all members that are ``alive``."""

    templates: TemplateSet
    conditions: Conditions
    alive: tuple[str, ...]
    held: Mapping[str, frozenset[int]]
    found: Instantiation

    def candidates(self, plan: Plan, lost: frozenset[str]) -> list[Reconfiguration]:
        """Return what each policy makes of it, as far as it keeps enough replicas and uses all nodes.

        Policies that come to the same sizes of pipelines are one candidate.
        """
        allowed = self.conditions.allowed
        made: list[Reconfiguration] = []
        tried = []
        for policy, sizes in self._sizes(plan, lost):
            if policy in allowed and sizes not in tried and self._is_enough(sizes):
                tried.append(sizes)
                made.append(self._of_sizes(policy, sizes))
        if Policy.REINSTANTIATE in allowed and [each.size for each in self.found.instances] not in tried:
            made.append(self._reinstantiated())
        if Policy.REROUTE in allowed and set(self.alive) <= set(plan.members):
            rerouted = self._rerouted(plan, lost, self._most_s(made))
            if rerouted is not None:
                made.append(rerouted)
        return made or [self._reinstantiated()]  # it is always possible

    def _reinstantiated(self) -> Reconfiguration:
        return self.placed(Policy.REINSTANTIATE, _shapes(self.templates, self.found), self.found.iteration_s)

    def _most_s(self, made: Sequence[Reconfiguration]) -> float:
        """Return how long a step of a change without moves may take so that it is not worse than all of these."""
        steps = max((each.cost.steps for each in made), default=0.0)
        left_s = self.conditions.expected_s - self.conditions.form_s - self.conditions.redo_s
        return left_s / steps if steps > 0 else float("inf")

    def _of_sizes(self, policy: Policy, sizes: Sequence[int]) -> Reconfiguration:
        counts, iteration_s = divide_micro_batches(self.templates, sizes, self.conditions.num_micro_batches)
        shapes = [
            Shape(template=self.templates.template(size), num_micro_batches=count)
            for size, count in zip(sizes, counts, strict=True)
        ]
        return self.placed(policy, shapes, iteration_s + (self.conditions.exchange_s if len(sizes) > 1 else 0.0))

    def placed(
        self, policy: Policy, shapes: Sequence[Shape], iteration_s: float, *, with_moves: bool = True
    ) -> Reconfiguration:
        pipelines, idle = place(
            shapes,
            self.alive,
            self.held,
            self._layer_bytes(),
            self.conditions.hosts,
            is_worth_moves=self.conditions.tolerate > 0,
        )
        tolerates = min(len(pipelines) - 1, self.conditions.tolerate)
        plan = Plan(pipelines=pipelines, iteration_s=iteration_s, tolerates=tolerates, idle=idle)
        return self._result(policy, plan, with_moves=with_moves)

    def _layer_bytes(self) -> list[int]:
        return [each.move_bytes for each in self.templates.profile.layers]

    def _result(self, policy: Policy, plan: Plan, *, with_moves: bool = True, plan_s: float = 0.0) -> Reconfiguration:
        moves: tuple[Move, ...] = ()
        if with_moves:
            moves = moves_to(plan.pipelines, self.held, self._layer_bytes(), divide=self.conditions.divide_layers)
        moved = sum(each.size_bytes for each in moves)
        return Reconfiguration(
            plan=plan,
            moves=moves,
            policy=policy,
            cost=Cost.of(self.conditions, plan.iteration_s, moved, busiest_bytes(moves), plan_s=plan_s),
            wanted=self.conditions.tolerate,
        )

    def _sizes(self, plan: Plan, lost: frozenset[str]) -> Iterator[tuple[Policy, list[int]]]:
        gone = lost | {LOST}
        left = [sum(member not in gone for member in each.members) for each in plan.pipelines]
        wanted = [each.template.num_nodes for each in plan.pipelines]
        num_joined = len(self.alive) - sum(left)
        for policy, reshaped in ((Policy.BORROW, borrowed), (Policy.MERGE, merged)):
            sizes = reshaped(left, wanted, num_joined, self.templates.sizes)
            if sizes is not None:
                yield policy, sorted(sizes, reverse=True)

    def _is_enough(self, sizes: Sequence[int]) -> bool:
        return self.found.tolerates < len(sizes) <= self.conditions.num_micro_batches and sum(
            sizes
        ) + self.found.idle == len(self.alive)

    def _rerouted(self, plan: Plan, lost: frozenset[str], most_s: float) -> Reconfiguration | None:
        found = reroute(plan, lost, self.templates, self.conditions, most_s=most_s)
        if found is None:
            return None
        exchange_s = self.conditions.exchange_s if len(found.pipelines) > 1 else 0.0
        made = Plan(
            pipelines=found.pipelines,
            iteration_s=found.iteration_s + exchange_s,
            reroutes=found.reroutes,
        )
        owners = Counter(layer for layers in made.holdings().values() for layer in layers)
        tolerates = min(min(owners.values()) - 1, self.conditions.tolerate)
        if tolerates < self.found.tolerates:
            return None
        plan_s = found.num_simulated * self.conditions.operation_s
        result = self._result(Policy.REROUTE, replace(made, tolerates=tolerates), plan_s=plan_s)
        return replace(result, shared=found.shared)


def _shapes(templates: TemplateSet, found: Instantiation) -> list[Shape]:
    return [
        Shape(template=templates.template(each.size), num_micro_batches=each.num_micro_batches)
        for each in found.instances
    ]
