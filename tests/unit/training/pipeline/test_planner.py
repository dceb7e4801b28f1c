"""Tests of what a proposer chooses."""

from __future__ import annotations

import time

from multiworld.training.pipeline.assignment import Assignment
from multiworld.training.pipeline.experience import Experience
from multiworld.training.pipeline.planner import Planner
from multiworld.training.planning.nodes import Node
from multiworld.training.planning.profile import LayerCost, Profile
from multiworld.training.planning.templates import Templates, make_templates
from multiworld.training.recovery.records import Generation, Member

NUM_LAYERS, NUM_MEMBERS = 6, 9
ALL = tuple(range(NUM_LAYERS))
MEMBERS = tuple(Member(id=f"m{rank}", rank=rank, host=f"h{rank}") for rank in range(NUM_MEMBERS))


def templates() -> Templates:
    layers = tuple(
        LayerCost(name=str(each), forward_s=0.1, backward_s=0.2, state_bytes=100, move_bytes=100) for each in ALL
    )
    node = Node(memory_bytes=50 * NUM_LAYERS + 1)
    return make_templates(Profile(model="m", micro_batch=1, layers=layers), node, num_nodes=NUM_MEMBERS, tolerate=1)


def planner(experience: Experience | None = None) -> Planner:
    return Planner(templates(), tolerate=1, num_micro_batches=16, experience=experience)


def begun(num_members: int = NUM_MEMBERS) -> Generation:
    members = MEMBERS[:num_members]
    layers = {each.id: ALL for each in members}
    return planner().complete(Generation(number=1, members=members, layers=layers), None)


def after_a_loss(before: Generation, lost: str, experience: Experience | None = None) -> Assignment:
    assert before.assignment is not None
    left = tuple(each for each in before.members if each.id != lost)
    layers = {each.id: before.assignment.layers_of(each.id) for each in left}
    now = planner(experience).complete(Generation(number=2, members=left, layers=layers), before).assignment
    assert now is not None
    return now


def test_who_has_seen_slow_moves_and_many_changes_moves_less() -> None:
    slow = Experience(now=time.monotonic())
    slow.moved(100, 10.0)
    for _ in range(300):
        slow.formed(is_change=True)

    usual, careful = (after_a_loss(begun(), "m3", each) for each in (None, slow))
    assert careful.iteration_s > usual.iteration_s
    assert len(careful.moves) < len(usual.moves)


def test_too_few_members_for_what_was_asked_for_are_told_how_many_it_needs() -> None:
    few, enough = begun(3).assignment, begun(4).assignment
    assert few is not None
    assert enough is not None
    assert (few.tolerates, few.needed) == (0, 4)
    assert (enough.tolerates, enough.needed) == (1, 0)
