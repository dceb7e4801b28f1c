"""Random losses and joins with members that compute for others: all follow the record, and nobody waits for ever."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict, deque
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from multiworld.training.errors import PlanError
from multiworld.training.pipeline.assignment import Assignment
from multiworld.training.pipeline.experience import Experience
from multiworld.training.pipeline.planner import Planner
from multiworld.training.pipeline.seen import pipelines_seen
from multiworld.training.pipeline.work import StepWork, Task
from multiworld.training.planning.changes.conditions import Policy
from multiworld.training.planning.nodes import Node
from multiworld.training.planning.operations import Kind
from multiworld.training.planning.plan import LOST
from multiworld.training.planning.profile import LayerCost, Profile
from multiworld.training.planning.template import Schedule
from multiworld.training.planning.templates import Templates, make_templates
from multiworld.training.recovery.records import Generation, Member
from multiworld.wire.messages import MessageSet
from multiworld.world.launcher.pipelines import LOST_RANK, sizes_of

NUM_LAYERS = 12
ACTIVATION_BYTES = 4
GENERATIONS: MessageSet[Generation] = MessageSet("generations of this test", Generation, tag="kind")


def planner_of(made: Templates, *, tolerate: int, num_micro_batches: int, split_backward: bool = False) -> Planner:
    """Return one that has seen very slow moves."""
    experience = Experience(now=time.monotonic())
    experience.moved(1, 1000.0)
    return Planner(
        made,
        tolerate=tolerate,
        num_micro_batches=num_micro_batches,
        experience=experience,
        split_backward=split_backward,
    )


def templates(
    smallest: int, num_in_flight: int | None, rng: random.Random, schedule: Schedule = Schedule.ONE_F_ONE_B
) -> Templates:
    layers = [
        LayerCost(
            name=str(index),
            forward_s=rng.uniform(0.5, 1.5),
            backward_s=rng.uniform(1.0, 3.0),
            weight_backward_s=rng.choice((0.0, rng.uniform(0.1, 1.0))),
            state_bytes=100,
            move_bytes=75,
            activation_bytes=ACTIVATION_BYTES,
        )
        for index in range(NUM_LAYERS)
    ]
    profile = Profile(model="test", micro_batch=1, layers=tuple(layers), latency_s=rng.choice((0.0, 0.3)))
    most = -(-NUM_LAYERS // smallest)
    memory_bytes = most * (100 + ACTIVATION_BYTES * (num_in_flight or NUM_LAYERS))
    return make_templates(
        profile, Node(memory_bytes=memory_bytes), num_nodes=12, tolerate=1, refine=False, schedules=[schedule]
    )


def generation_of(members: Sequence[Member], before: Generation | None, planner: Planner, number: int) -> Generation:
    held = {}
    for each in members:
        if before is None or before.assignment is None:
            held[each.id] = tuple(range(NUM_LAYERS))
        elif each in before.members:
            held[each.id] = before.assignment.layers_of(each.id)
    bare = Generation(number=number, members=tuple(members), layers=held)
    return planner.complete(bare, before)


def run(assignment: Assignment, dealt: Sequence[Sequence[int]] | None, rng: random.Random) -> None:
    """Have all members compute, each in its order, and wait for inputs. Raises AssertionError if they stand still."""
    step = StepWork(assignment, dealt)
    members = list(assignment.members)
    work = {member: step.of(member) for member in members}
    arrivals = {(each.source, each.kind, me): deque(each.micro_batches) for me in members for each in work[me].arrivals}
    next_of, sent = dict.fromkeys(members, 0), defaultdict[tuple[str, Kind, str], deque[int]](deque)
    kept = defaultdict[tuple[str, Kind, str], set[int]](set)
    in_flight: Counter[str] = Counter()

    def is_there(me: str, task: Task) -> bool:
        link = (task.source, task.kind, me)
        while task.micro_batch not in kept[link] and sent[link]:
            came = sent[link].popleft()
            assert arrivals[link].popleft() == came, "messages come as the receiver expects them"
            kept[link].add(came)
        return task.micro_batch in kept[link]

    while any(next_of[me] < len(work[me].tasks) for me in members):
        has_advanced = False
        for me in rng.sample(members, len(members)):
            for _ in range(rng.randint(1, 3)):
                if next_of[me] == len(work[me].tasks):
                    break
                task = work[me].tasks[next_of[me]]
                if task.source and not is_there(me, task):
                    break
                kept[task.source, task.kind, me].discard(task.micro_batch)
                if task.destination:
                    sent[me, task.kind, task.destination].append(task.micro_batch)
                if task.kind is Kind.FORWARD:
                    in_flight[me] += 1
                elif task.kind is Kind.WEIGHT or task.micro_batch not in work[me].split:
                    in_flight[me] -= 1
                assert in_flight[me] <= most_in_flight(assignment, me)
                next_of[me] += 1
                has_advanced = True
        assert has_advanced, "all members wait"
    assert not any(sent.values())
    assert not any(kept.values())
    assert not any(arrivals.values())
    assert not any(in_flight.values())


def most_in_flight(assignment: Assignment, member: str) -> int:
    role = assignment.role_of(member)
    assert role is not None
    return assignment.pipelines[role.pipeline].max_in_flight[role.stage]


def check(generation: Generation, made: Templates, num_micro_batches: int) -> None:
    assignment = generation.assignment
    assert assignment is not None
    assert GENERATIONS.decode(GENERATIONS.encode(generation)) == generation
    assert sorted(assignment.members) == sorted(each.id for each in generation.members)
    step, everything = StepWork(assignment), list(range(num_micro_batches))
    for layer in range(NUM_LAYERS):
        shares = [step.micro_batches_of(member) for member in assignment.owners(layer)]
        assert sorted(each for share in shares for each in share) == everything
    for member in assignment.members:
        assert sorted(step.of(member).micro_batches) == list(step.micro_batches_of(member))
        layers = len(assignment.layers_of(member))
        used = layers * (100 + ACTIVATION_BYTES * most_in_flight(assignment, member))
        recomputes = any(each.recompute for each in assignment.pipelines)
        assert recomputes or used <= (made.node.memory_bytes or 0)
    seen = pipelines_seen(generation)
    assert sum(sizes_of(seen)) == len(generation.members)
    lost = sum(each.ranks.count(LOST_RANK) for each in seen)
    assert lost == sum(each.members.count(LOST) for each in assignment.pipelines) == len(assignment.reroutes)
    held = [layer for member in step.members_of(0) for layer in assignment.layers_of(member)]
    assert held == list(range(NUM_LAYERS))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(4, 12), st.integers(12, 24), st.sampled_from([None, 1, 2]), st.integers(0))
def test_members_follow_the_record_through_losses_and_joins(
    smallest: int, num_nodes: int, num_micro_batches: int, num_in_flight: int | None, seed: int
) -> None:
    rng = random.Random(seed)
    made = templates(smallest, num_in_flight, rng, rng.choice((Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE)))
    planner = planner_of(
        made, tolerate=1, num_micro_batches=num_micro_batches, split_backward=rng.choice((True, False))
    )
    members = [Member(id=f"m{index:02}", rank=index, host="h") for index in range(max(num_nodes, made.smallest))]
    now = generation_of(members, None, planner, 1)
    for number in range(2, 8):
        check(now, made, num_micro_batches)
        assignment = now.assignment
        assert assignment is not None
        run(assignment, None, rng)
        counts = [rng.randint(0, each.num_micro_batches) for each in assignment.pipelines]
        numbers = rng.sample(range(num_micro_batches), sum(counts))
        run(assignment, [[numbers.pop() for _ in range(count)] for count in counts], rng)
        if rng.random() < 0.2:
            members = [*members, Member(id=f"n{number}", rank=20 + number, host="h")][:12]
        else:
            members = rng.sample(members, len(members) - 1)
        if any(not set(assignment.owners(layer)) & {each.id for each in members} for layer in range(NUM_LAYERS)):
            return
        try:
            now = generation_of(members, now, planner, number)
        except PlanError:
            assert len(members) < made.smallest
            return


def test_peers_of_a_lost_member_put_off_gradients_of_weights() -> None:
    made = templates(4, None, random.Random(0))
    members = [Member(id=f"m{index:02}", rank=index, host="h") for index in range(12)]
    times_s = []
    for split_backward in (False, True):
        planner = planner_of(made, tolerate=0, num_micro_batches=24, split_backward=split_backward)
        start = generation_of(members, None, planner, 1)
        assert start.assignment is not None
        lost = start.assignment.pipelines[0].members[1]
        now = generation_of([each for each in members if each.id != lost], start, planner, 2)
        assert now.assignment is not None
        assert now.assignment.policy == Policy.REROUTE.value
        step = StepWork(now.assignment)
        assert any(step.of(member).split for member in now.assignment.members) == split_backward
        run(now.assignment, None, random.Random(1))
        times_s.append(now.assignment.iteration_s)
    assert times_s[1] < times_s[0]


def test_losses_are_rerouted_again_and_again_and_a_newcomer_gets_a_lost_place() -> None:
    made = templates(4, None, random.Random(0))
    planner = planner_of(made, tolerate=0, num_micro_batches=24)
    members = [Member(id=f"m{index:02}", rank=index, host="h") for index in range(12)]
    start = generation_of(members, None, planner, 1)
    assert start.assignment is not None
    first, second = start.assignment.pipelines[0].members[1], start.assignment.pipelines[1].members[2]
    once = generation_of([each for each in members if each.id != first], start, planner, 2)
    left = [each for each in members if each.id not in (first, second)]
    twice = generation_of(left, once, planner, 3)
    for each, lost in ((once, 1), (twice, 2)):
        assert each.assignment is not None
        assert (each.assignment.policy, len(each.assignment.reroutes)) == (Policy.REROUTE.value, lost)
        assert each.assignment.moves == ()
        check(each, made, 24)
        run(each.assignment, None, random.Random(1))
    same = generation_of(left[::-1], twice, planner, 4)
    assert same.assignment is not None
    assert len(same.assignment.reroutes) == 2
    whole = [*left, Member(id="x", rank=30, host="h"), Member(id="y", rank=31, host="h")]
    grown = generation_of(whole, twice, planner, 5)
    assert grown.assignment is not None
    assert (grown.assignment.reroutes, grown.assignment.orders) == ((), ())
    assert {each.destination for each in grown.assignment.moves} == {"x", "y"}
