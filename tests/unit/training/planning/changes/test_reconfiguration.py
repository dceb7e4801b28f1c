"""What follows from losses and joins: the cheapest policy, enough replicas, and never a wrong plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from multiworld.training.errors import TooFewNodesError
from multiworld.training.planning.changes.conditions import Conditions, Policy
from multiworld.training.planning.changes.foreseen import Foreseen
from multiworld.training.planning.changes.reconfiguration import (
    CheckpointNeeded,
    Reconfiguration,
    reconfigure,
    start,
)
from multiworld.training.planning.changes.rerouting import reroute, shared_steps
from multiworld.training.planning.nodes import Node
from multiworld.training.planning.plan import LOST, Plan
from multiworld.training.planning.profile import LayerCost, Profile
from multiworld.training.planning.templates import Templates, make_templates

LAYER = LayerCost(
    name="block", forward_s=0.01, backward_s=0.02, weight_backward_s=0.01, state_bytes=1000, move_bytes=750
)
CONDITIONS = Conditions(tolerate=1, num_micro_batches=32, bytes_per_s=1e9)


def templates(num_nodes: int, smallest: int = 4, tolerate: int = 1) -> Templates:
    layers = tuple(replace(LAYER, name=str(index)) for index in range(24))
    profile = Profile(model="test", micro_batch=4, layers=layers)
    node = Node(memory_bytes=1000 * 24 // smallest)
    return make_templates(profile, node, num_nodes=num_nodes, tolerate=tolerate)


def names(count: int) -> list[str]:
    return [f"m{index:02}" for index in range(count)]


def changed(
    plan: Plan, made: Templates, conditions: Conditions, *, lost: tuple[str, ...] = (), joined: tuple[str, ...] = ()
) -> Reconfiguration:
    result = reconfigure(plan, lost=lost, joined=joined, templates=made, conditions=conditions)
    assert isinstance(result, Reconfiguration)
    return result


def test_pipelines_of_the_first_plan_have_hosts_that_follow_each_other() -> None:
    members = ["d", "a", "f", "c", "e", "b", "h", "g"]
    hosts = {"d": "third", "f": "first", "a": "second", "c": "third", "e": "first", "b": "second", "h": "x", "g": "x"}
    plan = start(members, templates(8), replace(CONDITIONS, hosts=hosts)).plan
    assert plan.members == ("d", "c", "a", "b", "f", "e", "h", "g")


def test_the_first_plan_has_all_members_and_moves_nothing() -> None:
    first = start(names(13), templates(13), CONDITIONS)
    assert sorted(first.plan.members) == names(13)
    assert (first.plan.tolerates, first.moves, first.policy) == (1, (), Policy.START)
    assert sum(each.num_micro_batches for each in first.plan.pipelines) == 32


def test_what_survivors_hold_is_never_copied_to_them() -> None:
    made = templates(13)
    plan = start(names(13), made, CONDITIONS).plan
    after = changed(plan, made, CONDITIONS, lost=("m02", "m07"))
    assert sorted(after.plan.members) == [each for each in names(13) if each not in ("m02", "m07")]
    held = plan.holdings()
    for move in after.moves:
        assert move.layer not in held[move.destination]
        assert move.layer in held[move.source]
        assert move.source not in ("m02", "m07")


def test_the_same_change_gives_the_same_plan_in_whatever_order_it_is_told() -> None:
    made = templates(13)
    plan = start(names(13), made, CONDITIONS).plan
    one = reconfigure(plan, lost=["m02", "m07"], joined=["y", "x"], templates=made, conditions=CONDITIONS)
    other = reconfigure(plan, lost={"m07", "m02"}, joined=("x", "y"), templates=templates(13), conditions=CONDITIONS)
    assert one == other


def test_joined_members_are_taken_in_and_what_they_prefetched_is_not_moved() -> None:
    made = templates(16)
    plan = start(names(12), made, CONDITIONS).plan
    grown = changed(plan, made, CONDITIONS, joined=("x", "y"))
    assert {"x", "y"} <= set(grown.plan.members)
    assert {each.destination for each in grown.moves} >= {"x", "y"}
    prefetched = {each: frozenset(grown.plan.holdings()[each]) for each in ("x", "y")}
    again = reconfigure(plan, joined=("x", "y"), templates=made, conditions=CONDITIONS, prefetched=prefetched)
    assert isinstance(again, Reconfiguration)
    assert not {each.destination for each in again.moves} & {"x", "y"}


def test_moves_that_were_interrupted_are_made_up_for() -> None:
    """A second loss while layers are on their way: what the plan gives a member is not what the member has."""
    made = templates(14)
    first = start(names(14), made, CONDITIONS).plan
    once = changed(first, made, CONDITIONS, lost=("m05",))
    held = {each: layers for each, layers in first.holdings().items() if each != "m05"}
    for policies in ({Policy.REINSTANTIATE}, set(Policy)):
        twice = reconfigure(
            once.plan,
            lost=["m09"],
            templates=made,
            conditions=replace(CONDITIONS, allowed=frozenset(policies)),
            held=held,
        )
        assert isinstance(twice, Reconfiguration)
        got = {(each.destination, each.layer) for each in twice.moves}
        for member, layers in twice.plan.holdings().items():
            assert layers == {layer for layer in layers if layer in held[member] or (member, layer) in got}
        assert all(each.layer in held[each.source] for each in twice.moves)


def test_below_the_nodes_for_all_replicas_the_plan_says_so() -> None:
    made = templates(8)
    plan = start(names(8), made, CONDITIONS).plan
    conditions = replace(CONDITIONS, allowed=frozenset({Policy.REINSTANTIATE}))
    after = changed(plan, made, conditions, lost=("m03",))
    assert (len(after.plan.pipelines), after.plan.tolerates, after.is_degraded) == (1, 0, True)
    with pytest.raises(TooFewNodesError):
        reconfigure(
            after.plan,
            lost=names(5),
            templates=made,
            conditions=conditions,
            held=dict.fromkeys(names(8), frozenset(range(24))),
        )


def test_where_all_owners_of_a_layer_are_lost_a_checkpoint_is_needed() -> None:
    made = templates(10)
    plan = start(names(10), made, CONDITIONS).plan
    owners = plan.owners(7)
    result = reconfigure(plan, lost=owners, templates=made, conditions=CONDITIONS)
    assert isinstance(result, CheckpointNeeded)
    assert 7 in result.layers
    assert result.restart.moves == ()
    assert set(result.restart.plan.members) == set(names(10)) - set(owners)


def test_a_loss_is_rerouted_where_moves_take_longer_than_is_expected() -> None:
    """Sixteen pipelines: without one node of 64, the peers have a fifteenth more to do, and nothing is moved."""
    made = templates(16)
    slow = replace(CONDITIONS, num_micro_batches=64, bytes_per_s=100.0, expected_s=100.0, split_backward=True)
    plan = start(names(16), made, slow).plan
    assert len(plan.pipelines) == 4
    after = changed(plan, made, slow, lost=("m05",))
    assert after.policy is Policy.REROUTE
    assert after.moves == ()
    (rerouted,) = after.plan.reroutes
    assert after.plan.pipelines[rerouted.pipeline].members[rerouted.node] == LOST
    assert len(rerouted.peers) == after.plan.pipelines[rerouted.pipeline].num_micro_batches
    assert set(rerouted.peers) == set(range(4)) - {rerouted.pipeline}
    assert LOST not in after.plan.members
    assert len(after.plan.owners(7)) in (3, 4)
    (step,) = shared_steps(after.plan, made, split_backward=True)
    assert step.iteration_s() == after.plan.iteration_s
    assert after.cost.steps >= max(each.steps for each in after.considered.values())
    long = replace(slow, expected_s=1e9)
    assert changed(plan, made, long, lost=("m05",)).policy is not Policy.REROUTE


def test_a_rerouted_plan_is_followed_by_another_or_by_whole_pipelines() -> None:
    made = templates(16)
    slow = replace(CONDITIONS, num_micro_batches=64, bytes_per_s=100.0, expected_s=100.0, split_backward=True)
    once = changed(start(names(16), made, slow).plan, made, slow, lost=("m05",))
    twice = changed(once.plan, made, slow, lost=("m10",))
    assert twice.policy is Policy.REROUTE
    assert len(twice.plan.reroutes) == 2
    for each in twice.plan.reroutes:
        assert all(twice.plan.pipelines[peer].members[each.node] != LOST for peer in each.peers)
    whole = changed(twice.plan, made, replace(slow, expected_s=1e9), joined=("x", "y"))
    assert whole.plan.reroutes == ()
    assert len(whole.plan.members) == 16


def test_nothing_is_rerouted_where_too_few_would_hold_a_layer() -> None:
    made = templates(9)
    slow = replace(CONDITIONS, bytes_per_s=1.0, expected_s=1.0)
    after = changed(start(names(9), made, slow).plan, made, slow, lost=("m05",))
    assert Policy.REROUTE not in after.considered
    assert after.plan.tolerates == 1


def test_what_it_takes_to_simulate_a_rerouted_step_counts() -> None:
    made = templates(16)
    slow = replace(CONDITIONS, num_micro_batches=64, bytes_per_s=100.0, expected_s=100.0, split_backward=True)
    plan = start(names(16), made, slow).plan
    rerouted = changed(plan, made, slow, lost=("m05",))
    one_by_one = changed(plan, made, replace(slow, operation_s=1e-3), lost=("m05",))
    assert one_by_one.policy is Policy.REROUTE
    simulated_s = 1e-3 * sum(each.num_operations for each in one_by_one.shared)
    assert one_by_one.cost.change_s >= rerouted.cost.change_s + simulated_s
    assert changed(plan, made, replace(slow, operation_s=1.0), lost=("m05",)).policy is not Policy.REROUTE


def test_nothing_is_simulated_where_rerouting_cannot_be_best() -> None:
    """Of two pipelines: the only peer has twice as much to do."""
    made = templates(8)
    plan = start(names(8), made, CONDITIONS).plan
    alone = changed(plan, made, replace(CONDITIONS, allowed=frozenset({Policy.REROUTE})), lost=("m05",))
    best = changed(plan, made, CONDITIONS, lost=("m05",))
    assert alone.policy is Policy.REROUTE
    assert Policy.REROUTE not in best.considered
    assert alone.cost.steps < best.cost.steps


def test_rerouting_changes_nothing_where_nobody_was_lost() -> None:
    made = templates(16)
    plan = start(names(16), made, CONDITIONS).plan
    assert reroute(plan, frozenset(), made, CONDITIONS) is None


def test_only_allowed_policies_are_chosen() -> None:
    made = templates(16)
    plan = start(names(16), made, CONDITIONS).plan
    for policy in (Policy.REINSTANTIATE, Policy.MERGE, Policy.REROUTE):
        after = changed(plan, made, replace(CONDITIONS, allowed=frozenset({policy})), lost=("m05",))
        assert after.policy is policy
    assert set(plan.members) - set(after.plan.members) == {"m05"}


def test_what_follows_from_each_single_loss_is_made_in_advance() -> None:
    made = templates(12)
    plan = start(names(12), made, CONDITIONS).plan
    foreseen = Foreseen(plan, made, CONDITIONS)
    asked = foreseen.outcome("m04")
    made_one_by_one = 1
    while not foreseen.is_complete:
        foreseen.make_next()
        made_one_by_one += 1
    assert made_one_by_one == 12
    assert set(foreseen.outcomes) == set(names(12))
    assert foreseen.outcome("m04") is asked
    for lost, outcome in foreseen.outcomes.items():
        assert outcome == reconfigure(plan, lost=[lost], templates=made, conditions=CONDITIONS)
    alone = start(names(4), made, CONDITIONS).plan
    assert isinstance(Foreseen(alone, made, CONDITIONS).outcome("m00"), TooFewNodesError | CheckpointNeeded)
