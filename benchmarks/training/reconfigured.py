"""How long pipelines take to instantiate, whether there is a plan after any losses, and what it moves."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import TypeVar

import numpy as np
from scipy.optimize import linprog

from multiworld.bench.report import Bound, Line
from multiworld.training.errors import TooFewNodesError
from multiworld.training.planning.changes.conditions import Conditions
from multiworld.training.planning.changes.foreseen import Foreseen
from multiworld.training.planning.changes.reconfiguration import CheckpointNeeded, Reconfiguration, reconfigure, start
from multiworld.training.planning.instantiation import instantiate
from multiworld.training.planning.nodes import Node
from multiworld.training.planning.plan import Move, Plan
from multiworld.training.planning.templates import Templates, make_templates

from .planning import jittered

__all__ = ["coverage", "instantiation", "moves", "sized_templates"]

Result = TypeVar("Result")


def sized_templates(
    num_layers: int, smallest: int, num_nodes: int, tolerate: int, seed: int, *, in_flight: int = 2
) -> Templates:
    """Return templates of jittered layers of 100 MB, a quarter more or less.

    A node has memory for an equal share of ``smallest``, with ``in_flight`` micro-batches of activations.
    """
    rng = random.Random(seed)
    profile = jittered(num_layers, rng)
    layers = tuple(
        replace(each, move_bytes=rng.randint(75, 125) * 10**6, weight_backward_s=each.backward_s / 2)
        for each in profile.layers
    )
    node = Node(memory_bytes=int(num_layers / smallest * (1000 + 150 * in_flight)))
    return make_templates(replace(profile, layers=layers), node, num_nodes=num_nodes, tolerate=tolerate, refine=False)


def instantiation(seed: int) -> list[Line]:
    """Instantiate 64 nodes with 1,024 micro-batches; make plans for single losses, and look them up."""
    lines = []
    for smallest in (1, 2, 8):
        made = sized_templates(100, smallest, 64, 1, seed)
        for name, fresh in (("", False), (", the curves of the templates included", True)):
            taken_s, found = _cpu_s(
                lambda made=made, fresh=fresh: instantiate(  # type: ignore[misc]
                    _without_curves(made) if fresh else made, 64, tolerate=1, num_micro_batches=1024
                )
            )
            lines.append(
                _ms(
                    f"instantiation of 64 nodes, 1,024 micro-batches, n0 = {made.smallest}{name}",
                    taken_s,
                    100,
                    {"pipelines": float(len(found.instances))},
                )
            )
    made = sized_templates(100, 4, 64, 1, seed)
    conditions = Conditions(tolerate=1, num_micro_batches=1024, bytes_per_s=1e9)
    foreseen = Foreseen(start(_names(64), made, conditions).plan, made, conditions)
    making_s = []
    while not foreseen.is_complete:
        began_s = time.process_time()
        foreseen.make_next()
        making_s.append(time.process_time() - began_s)
    taken_s, _ = _cpu_s(lambda: [foreseen.outcome(each) for each in _names(64)])
    lines.append(_ms("plan for a loss that was foreseen, 64 nodes", taken_s / 64, 10, {}))
    lines.append(
        Line(
            name="plan for one loss of 64 nodes, made in advance between steps",
            unit="ms",
            value=1e3 * median(making_s),
            details={"longest": 1e3 * max(making_s)},
            note="CPU, one loss; every policy is tried",
        )
    )
    return lines


def coverage(seed: int) -> list[Line]:
    """Instantiate every number of nodes up to 60 for n0 up to 8 and f up to 3; kill at random down to n0."""
    rng = random.Random(seed)
    wrong: Counter[str] = Counter()
    tried = changes = 0
    for smallest in range(1, 9):
        for tolerate in range(4):
            made = sized_templates(16, smallest, 60, tolerate, seed)
            for num_nodes in range(made.smallest, 61):
                tried += 1
                wrong += _wrong_instances(made, num_nodes, tolerate)
            for _ in range(3):
                found, number = _killed(made, tolerate, rng)
                wrong += found
                changes += number
    details = {
        each: float(wrong[each]) for each in ("idle nodes", "too few replicas", "degraded in silence", "no plan")
    }
    return [
        Line(
            name="plans that are not as promised",
            unit="plans",
            value=float(wrong.total()),
            bound=Bound.at_most(0),
            details={**details, "instantiations": float(tried), "changes": float(changes)},
            note="n0 to 8, f to 3, N to 60, killed at random until too few are left",
        )
    ]


def moves(seed: int) -> list[Line]:
    """Take nodes away and add some, and compare what is moved with bounds from linear programs (HiGHS)."""
    rng = random.Random(seed)
    moved, busiest, means = [], [], []
    for _ in range(150):
        num_nodes, tolerate = rng.randint(12, 48), rng.randint(1, 3)
        made = sized_templates(rng.choice((26, 50, 100)), rng.randint(2, 6), num_nodes + 6, tolerate, rng.randrange(99))
        conditions = Conditions(tolerate=tolerate, num_micro_batches=256, bytes_per_s=1e9, expected_s=1e9)
        plan = start(_names(num_nodes), made, conditions).plan
        lost = rng.sample(plan.members, rng.randint(1, 3))
        joined = [f"new{index}" for index in range(rng.choice((0, 0, 0, 1, 2)))]
        after = reconfigure(plan, lost=lost, joined=joined, templates=made, conditions=conditions)
        if isinstance(after, CheckpointNeeded) or not after.moves:
            continue
        held = {each: layers for each, layers in plan.holdings().items() if each not in lost}
        sent = Counter[str]()
        for move in after.moves:
            sent[move.source] += move.size_bytes
        sources = {each for each, layers in held.items() if any(move.layer in layers for move in after.moves)}
        mean = sent.total() / len(sources)
        least = _least_busiest_bytes(after.moves, held)
        moved.append(after.cost.moved_bytes / max(1.0, _least_bytes(after, held, made)))
        busiest.append(max(sent.values()) / least)
        if least <= mean * 1.2:
            means.append(max(sent.values()) / mean)
    return [
        Line(
            name="bytes moved, against the least for these pipelines",
            unit="x",
            value=max(moved),
            bound=Bound.at_most(1.1),
            details={"changes": float(len(moved)), "median": median(moved)},
            note="worst change",
        ),
        Line(
            name="bytes of the busiest source, against the mean, where sources can share them equally",
            unit="x",
            value=max(means),
            bound=Bound.at_most(1.2),
            details={"changes": float(len(means)), "median": median(means)},
            note="worst change of those in which the layers can be sent so that it is",
        ),
        Line(
            name="bytes of the busiest source, against the least possible",
            unit="x",
            value=max(busiest),
            bound=Bound.at_most(1.2),
            details={"changes": float(len(busiest)), "median": median(busiest)},
            note="worst change",
        ),
    ]


def _wrong_instances(made: Templates, num_nodes: int, tolerate: int) -> Counter[str]:
    found = instantiate(made, num_nodes, tolerate=tolerate, num_micro_batches=64)
    wrong: Counter[str] = Counter()
    wrong["idle nodes"] += found.idle > 0
    wrong["too few replicas"] += len(found.instances) < min(tolerate + 1, num_nodes // made.smallest)
    wrong["degraded in silence"] += found.is_degraded != (len(found.instances) <= tolerate)
    return wrong


def _killed(made: Templates, tolerate: int, rng: random.Random) -> tuple[Counter[str], int]:
    """Kill one to ``tolerate`` at a time; return what was wrong, and how many changes there were."""
    conditions = Conditions(
        tolerate=tolerate, num_micro_batches=64, bytes_per_s=1e9, expected_s=rng.choice((1.0, 1e3, 1e9))
    )
    plan: Plan = start(_names(rng.randint(max(20, made.smallest), 60)), made, conditions).plan
    wrong: Counter[str] = Counter()
    changes = 0
    while True:
        lost = rng.sample(plan.members, min(len(plan.members), rng.randint(1, max(1, tolerate))))
        left = len(plan.members) - len(lost)
        try:
            after = reconfigure(plan, lost=lost, templates=made, conditions=conditions)
        except TooFewNodesError:
            wrong["no plan"] += left >= made.smallest
            return wrong, changes
        changes += 1
        if isinstance(after, CheckpointNeeded):
            wrong["no plan"] += len(lost) <= plan.tolerates
            after = after.restart
        owners = min(len(after.plan.owners(layer)) for layer in range(made.profile.num_layers))
        wrong["idle nodes"] += len(set(after.plan.members)) != left
        wrong["too few replicas"] += owners < min(tolerate + 1, left // made.smallest)
        wrong["degraded in silence"] += after.is_degraded != (owners <= tolerate)
        plan = after.plan


def _least_bytes(after: Reconfiguration, held: Mapping[str, frozenset[int]], made: Templates) -> float:
    """Return the least that any order of members in these pipelines would move: an assignment, by HiGHS."""
    layers = made.profile.layers
    places = [set(each.layers_of(member)) for each in after.plan.pipelines for member in each.members]
    members = after.plan.members
    cost = [
        [sum(layers[n].move_bytes for n in place - held.get(member, frozenset())) for place in places]
        for member in members
    ]
    size = len(members)
    once = np.zeros((2 * size, size * size))
    for index in range(size):
        once[index, index * size : (index + 1) * size] = 1
        once[size + index, index::size] = 1
    return float(linprog(np.array(cost, float).ravel() / 1e6, A_eq=once, b_eq=np.ones(2 * size)).fun * 1e6)


def _least_busiest_bytes(moved: Sequence[Move], held: Mapping[str, frozenset[int]]) -> float:
    """Return the least that the busiest source of these moves can send, if layers may be divided at will."""
    needed: Counter[int] = Counter()
    for move in moved:
        needed[move.layer] += move.size_bytes
    pairs = [(member, layer) for member, has in held.items() for layer in sorted(has & set(needed))]
    members, layers = sorted({each for each, _ in pairs}), sorted(needed)
    equal, below = np.zeros((len(layers), len(pairs) + 1)), np.zeros((len(members), len(pairs) + 1))
    for column, (member, layer) in enumerate(pairs):
        equal[layers.index(layer), column] = below[members.index(member), column] = 1
    below[:, -1] = -1
    goal = np.zeros(len(pairs) + 1)
    goal[-1] = 1
    sizes = [needed[each] / 1e6 for each in layers]
    return float(linprog(goal, A_ub=below, b_ub=np.zeros(len(members)), A_eq=equal, b_eq=sizes).fun * 1e6)


def _without_curves(made: Templates) -> Templates:
    return Templates(
        made.profile,
        made.node,
        {each.num_nodes: each for each in made},
        tolerate=made.tolerate,
        num_nodes=made.num_nodes,
    )


def _names(count: int) -> list[str]:
    return [f"m{index:02}" for index in range(count)]


def _cpu_s(do: Callable[[], Result]) -> tuple[float, Result]:
    """Return the least CPU time of seven."""
    taken_s = []
    for _ in range(7):
        began_s = time.process_time()
        result = do()
        taken_s.append(time.process_time() - began_s)
    return min(taken_s), result


def _ms(name: str, taken_s: float, limit: float, details: Mapping[str, float]) -> Line:
    return Line(
        name=name, unit="ms", value=1e3 * taken_s, bound=Bound.at_most(limit), details=details, note="CPU, best of 7"
    )
