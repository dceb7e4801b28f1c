"""Random losses and joins: there always is a plan, with all members in it and enough replicas, or it says that not."""

from __future__ import annotations

import random
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from multiworld.training.errors import TooFewNodesError
from multiworld.training.planning.changes.conditions import Conditions, Policy
from multiworld.training.planning.changes.reconfiguration import CheckpointNeeded, Reconfiguration, reconfigure, start
from multiworld.training.planning.nodes import Node
from multiworld.training.planning.plan import Plan
from multiworld.training.planning.profile import LayerCost, Profile
from multiworld.training.planning.templates import Templates, make_templates

NUM_LAYERS = 16
MOST_NODES = 60


@cache
def templates(smallest: int, tolerate: int) -> Templates:
    layers = [
        LayerCost(name=str(index), forward_s=1.0, backward_s=2.0, weight_backward_s=1.0, state_bytes=10, move_bytes=9)
        for index in range(NUM_LAYERS)
    ]
    profile = Profile(model="test", micro_batch=1, layers=tuple(layers))
    per_node = -(-NUM_LAYERS // smallest)
    return make_templates(
        profile, Node(memory_bytes=10 * per_node), num_nodes=MOST_NODES, tolerate=tolerate, refine=False
    )


def check(made: Reconfiguration, alive: set[str], least: int, conditions: Conditions) -> None:
    plan = made.plan
    assert set(plan.members) == alive
    assert len(plan.members) == len(alive)
    assert plan.idle == ()
    possible = min(conditions.tolerate + 1, len(alive) // least)
    for layer in range(NUM_LAYERS):
        assert len(plan.owners(layer)) >= possible
    assert plan.tolerates == min(min(len(plan.owners(layer)) for layer in range(NUM_LAYERS)) - 1, conditions.tolerate)
    assert made.is_degraded == (plan.tolerates < conditions.tolerate)
    assert sum(each.num_micro_batches for each in plan.pipelines) == conditions.num_micro_batches
    assert min(each.num_micro_batches for each in plan.pipelines) >= 1


def check_moves(made: Reconfiguration, before: Plan, alive: set[str]) -> None:
    held = {member: set(layers) for member, layers in before.holdings().items() if member in alive}
    for move in made.moves:
        assert move.layer in held[move.source]
        assert move.layer not in held.get(move.destination, ())
    for move in made.moves:
        held.setdefault(move.destination, set()).add(move.layer)
    for member, layers in made.plan.holdings().items():
        assert layers <= held[member]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 8),
    st.integers(0, 3),
    st.integers(1, MOST_NODES),
    st.booleans(),
    st.sampled_from([1.0, 1e9]),
    st.randoms(),
)
def test_there_is_a_plan_with_all_members_and_enough_replicas(
    smallest: int, tolerate: int, num_nodes: int, split: bool, expected_s: float, rng: random.Random
) -> None:
    made = templates(smallest, tolerate)
    smallest = made.smallest
    num_nodes = max(num_nodes, smallest)
    conditions = Conditions(
        tolerate=tolerate, num_micro_batches=64, expected_s=expected_s, bytes_per_s=9.0, split_backward=split
    )
    alive = {f"m{index}" for index in range(num_nodes)}
    now = start(sorted(alive), made, conditions)
    check(now, alive, smallest, conditions)
    number = num_nodes
    for _ in range(6):
        lost = set(rng.sample(sorted(alive), min(len(alive), rng.choice((0, 1, 1, 1, 2, 5)))))
        joined = {f"m{number + index}" for index in range(rng.choice((0, 0, 1, 2)))}
        if len(alive) - len(lost) + len(joined) > MOST_NODES:
            joined = set()
        number += len(joined)
        after = (alive - lost) | joined
        try:
            result = reconfigure(now.plan, lost=lost, joined=joined, templates=made, conditions=conditions)
        except TooFewNodesError:
            assert len(after) < smallest
            return
        assert len(after) >= smallest
        if isinstance(result, CheckpointNeeded):
            assert len(lost) > now.plan.tolerates
            result = result.restart
        else:
            check_moves(result, now.plan, after)
        check(result, after, smallest, conditions)
        if result.policy is Policy.REROUTE:
            assert result.moves == ()
        now, alive = result, after
