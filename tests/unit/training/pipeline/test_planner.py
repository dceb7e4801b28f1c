"""Tests of what a proposer chooses."""

from __future__ import annotations

import time
from dataclasses import replace

from multiworld.training.pipeline.assignment import Assignment
from multiworld.training.pipeline.experience import Experience
from multiworld.training.pipeline.growing import PREFETCH, SMALL_BYTES
from multiworld.training.pipeline.planner import Planner
from multiworld.training.planning.nodes import Node
from multiworld.training.planning.profile import LayerCost, Profile
from multiworld.training.planning.templates import Templates, make_templates
from multiworld.training.recovery.records import Generation, Member

NUM_LAYERS, NUM_MEMBERS = 6, 9
ALL = tuple(range(NUM_LAYERS))
MEMBERS = tuple(Member(id=f"m{rank}", rank=rank, host=f"h{rank}") for rank in range(NUM_MEMBERS))


def templates(move_bytes: int = 100) -> Templates:
    layers = tuple(
        LayerCost(name=str(each), forward_s=0.1, backward_s=0.2, state_bytes=100, move_bytes=move_bytes) for each in ALL
    )
    node = Node(memory_bytes=50 * NUM_LAYERS + 1)
    return make_templates(Profile(model="m", micro_batch=1, layers=layers), node, num_nodes=NUM_MEMBERS, tolerate=1)


def planner(experience: Experience | None = None, move_bytes: int = 100) -> Planner:
    return Planner(templates(move_bytes), tolerate=1, num_micro_batches=16, experience=experience)


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


LARGE = planner(move_bytes=SMALL_BYTES + 1)


def grown(
    before: Generation, held: dict[str, tuple[int, ...]] | None = None, *, may_prefetch: bool = True
) -> Generation:
    """Return the generation after one of four members, with a fifth one. ``held``: by default it has no layers."""
    assert before.assignment is not None
    layers = {each.id: before.assignment.layers_of(each.id) for each in MEMBERS[:4]} if held is None else held
    now = Generation(number=before.number + 1, members=MEMBERS[:5], layers=layers)
    return LARGE.complete(now, before, may_prefetch=may_prefetch)


def test_large_layers_go_to_a_newcomer_while_the_others_go_on_as_before() -> None:
    before = begun(4)
    assert before.assignment is not None
    now = grown(before)
    assert now.assignment == replace(before.assignment, moves=(), idle=("m4",), policy=PREFETCH)
    assert now.coming is not None
    assert "m4" in now.coming.members
    assert "m4" in {each.destination for each in now.coming.moves}
    after = grown(now, {each.id: ALL for each in MEMBERS[:5]})
    assert (after.assignment, after.coming) == (replace(now.coming, moves=()), None)


def test_small_layers_go_to_a_newcomer_in_a_pause() -> None:
    before = begun(4)
    assert before.assignment is not None
    layers = {each.id: before.assignment.layers_of(each.id) for each in MEMBERS[:4]}
    now = planner().complete(Generation(number=2, members=MEMBERS[:5], layers=layers), before)
    assert now.coming is None
    assert now.assignment is not None
    assert now.assignment.moves
    assert now.assignment.policy != PREFETCH


def test_layers_are_moved_in_a_pause_if_no_steps_follow() -> None:
    now = grown(begun(4), may_prefetch=False)
    assert now.coming is None
    assert now.assignment is not None
    assert "m4" in now.assignment.members


def test_layers_are_moved_in_a_pause_if_a_member_was_lost_meanwhile() -> None:
    now = grown(begun(4))
    assert now.assignment is not None
    left = tuple(each for each in MEMBERS[:5] if each.id != "m0")
    layers = {each.id: now.assignment.layers_of(each.id) for each in left}
    after = LARGE.complete(Generation(number=3, members=left, layers=layers), now)
    assert after.coming is None
    assert after.assignment is not None
    assert set(after.assignment.members) == {each.id for each in left}


def test_what_a_newcomer_has_got_is_not_moved_again() -> None:
    now = grown(begun(4))
    assert now.assignment is not None
    assert now.coming is not None
    came = now.coming.layers_of("m4")[:1]
    layers = {each.id: now.assignment.layers_of(each.id) for each in MEMBERS[:4]}
    again = grown(now, {**layers, "m4": came})
    assert again.coming is not None
    moved = {(each.destination, each.first) for each in again.coming.moves}
    assert ("m4", *came) not in moved
    assert len(again.coming.moves) < len(now.coming.moves)


def test_stages_before_the_last_hold_one_micro_batch_more_than_the_template_says() -> None:
    assignment = begun(4).assignment
    assert assignment is not None
    assert templates().template(2).max_in_flight == (2, 1)
    assert [each.max_in_flight for each in assignment.pipelines] == [(3, 1), (3, 1)]
    assert {each.max_in_flight for each in after_a_loss(begun(4), "m3").pipelines} <= {(3, 1), (4, 3, 1)}
