"""Whatever dies, joins or stops, in whatever order: each micro-batch counts once, and whoever is left goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.training.simulated.schedules import hit_in_recovery, killed_at_random
from multiworld.training.recovery.agreement import Rules, Situation, agree
from multiworld.training.recovery.records import Announcement, Generation, LostMember, Member

HANG_S = 10.0


@pytest.mark.parametrize("first_seed", range(0, 1000, 100))
def test_each_sample_counts_once_in_a_thousand_random_kill_schedules(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 100):
        training = killed_at_random(seed)
        try:
            furthest = max(each.step for each in training.processes.values())
            training.go_on_to(furthest + 3)
            assert training.report().problems == ()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("first_seed", range(0, 500, 100))
def test_whoever_is_left_goes_on_in_five_hundred_schedules_of_failures_in_a_recovery(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 100):
        try:
            training, next_step_s = hit_in_recovery(seed)
            assert next_step_s < HANG_S
            furthest = max(each.step for each in training.processes.values())
            training.go_on_to(furthest + 3)
            assert training.report().problems == ()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def side(
    current: Generation, here: list[Member], announcements: dict[str, Announcement], confirmed: bool | None
) -> Situation:
    """What a member of one side of a partition sees: the others cannot be reached."""
    away = [each for each in current.members if each not in here]
    lost = tuple(LostMember(id=each.id, cause="PeerUnreachableError", is_proven=False) for each in away)
    said = {each.id: replace(announcements[each.id], lost=lost) for each in here}
    return Situation(
        current=current, here=frozenset(each.id for each in here), said=said, waited_s=100.0, is_confirmed=confirmed
    )


@given(
    sides=st.lists(st.booleans(), min_size=1, max_size=7),
    has_state=st.lists(st.booleans(), min_size=7, max_size=7),
)
def test_never_do_both_sides_of_a_partition_go_on(sides: list[bool], has_state: list[bool]) -> None:
    """Each host is on one side; each side has a store. Without a launcher, one side at most goes on."""
    members = tuple(Member(id=f"m{rank}", rank=rank, host=f"host{rank}") for rank in range(len(sides)))
    stateless = tuple(each.id for each, has in zip(members, has_state, strict=False) if not has)
    if len(stateless) == len(members):
        stateless = stateless[1:]
    current = Generation(number=3, members=members, step=5, stateless=stateless, sources=("m0",))
    announcements = {each.id: Announcement(member=each, step=5, has_state=each.id not in stateless) for each in members}
    outcomes = []
    for which in (True, False):
        here = [each for each, is_there in zip(members, sides, strict=True) if is_there is which]
        if here:
            situation = side(current, here, announcements, None)
            outcomes.append(agree(situation, Rules()))
            cut_off = side(current, here, announcements, False)
            if len(here) < len(members):
                assert not isinstance(agree(cut_off, Rules()), Generation), "before the launcher has confirmed it"
    went_on = [each for each in outcomes if isinstance(each, Generation)]
    assert len(went_on) <= 1
