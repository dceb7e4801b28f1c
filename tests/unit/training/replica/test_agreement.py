"""Who goes on together when a replica has two processes."""

from __future__ import annotations

from multiworld.training.engine.facts import Facts
from multiworld.training.recovery.agreement import Rules, Situation, Wait, agree
from multiworld.training.recovery.records import Announcement, Generation, LostMember, Member

RULES = Rules(min_members=2, replica_size=2)


def member(rank: int, replica: str) -> Member:
    return Member(id=f"{rank}{replica}", rank=rank, host="h", replica=replica)


A0, A1, B0, B1 = member(0, "a"), member(1, "a"), member(2, "b"), member(3, "b")
NEW_B0, NEW_B1 = member(2, "c"), member(3, "c")
CURRENT = Generation(number=4, members=(A0, A1, B0, B1))


def says(*announcements: Announcement, here: tuple[Member, ...], current: Generation | None = CURRENT) -> Situation:
    said = {each.member.id: each for each in announcements}
    return Situation(current=current, here=frozenset(each.id for each in here), said=said, waited_s=60.0)


def test_a_replica_that_lost_a_process_is_out_though_its_other_process_is_there() -> None:
    lost = (LostMember(id=B1.id, cause="PeerDiedError"),)
    announced = [Announcement(member=each, step=7, lost=lost) for each in (A0, A1, B0)]
    agreed = agree(says(*announced, here=(A0, A1, B0)), RULES)
    assert isinstance(agreed, Generation)
    assert agreed.members == (A0, A1)


def test_nobody_waits_for_the_other_processes_of_a_replica_that_lost_one() -> None:
    announced = [Announcement(member=each, step=7) for each in (A0, A1)]
    agreed = agree(says(*announced, here=(A0, A1, B0)), RULES)  # B1 is gone, and B0 has not ended yet
    assert isinstance(agreed, Generation)
    assert agreed.members == (A0, A1)


def test_the_other_processes_of_a_whole_replica_are_waited_for() -> None:
    announced = [Announcement(member=each, step=7) for each in (A0, A1, B0)]
    assert isinstance(agree(says(*announced, here=(A0, A1, B0, B1)), RULES), Wait)


def test_a_returning_replica_is_admitted_once_all_its_processes_are_there() -> None:
    current = Generation(number=5, members=(A0, A1))
    announced = [Announcement(member=each, step=7) for each in (A0, A1)]
    announced.append(Announcement(member=NEW_B1, has_state=False))
    half = agree(says(*announced, here=(A0, A1, NEW_B1), current=current), RULES)
    assert isinstance(half, Generation)
    assert half.members == (A0, A1)
    announced.append(Announcement(member=NEW_B0, has_state=False))
    whole = agree(says(*announced, here=(A0, A1, NEW_B0, NEW_B1), current=current), RULES)
    assert isinstance(whole, Generation)
    assert whole.members == (A0, A1, NEW_B0, NEW_B1)
    assert whole.stateless == (NEW_B0.id, NEW_B1.id)
    assert whole.sources == (A0.id, A1.id)


def test_replicas_that_did_not_hear_that_a_step_counts_take_its_facts() -> None:
    facts = (Facts(step=7),) * 6
    c0, c1 = member(4, "d"), member(5, "d")
    current = Generation(number=4, members=(A0, A1, B0, B1, c0, c1))
    announced = [Announcement(member=each, step=8, facts=facts) for each in (A0, A1)]
    announced += [Announcement(member=each, step=7, is_complete=True) for each in (B0, B1)]
    agreed = agree(says(*announced, here=(A0, A1, B0, B1), current=current), RULES)
    assert isinstance(agreed, Generation)
    assert (agreed.step, agreed.facts, agreed.stateless, agreed.sources) == (8, facts, (), (A0.id, A1.id))


def test_a_first_generation_begins_with_a_whole_replica_as_the_source() -> None:
    announced = [Announcement(member=each, has_state=False) for each in (B1, A0, B0, A1)]
    announced[2] = Announcement(member=B0, has_state=False, saved_step=40)
    agreed = agree(says(*announced, here=(A0, A1, B0, B1), current=None), RULES)
    assert isinstance(agreed, Generation)
    assert agreed.members == (A0, A1, B0, B1)
    assert agreed.sources == (B0.id, B1.id)
    assert agreed.stateless == (A0.id, A1.id)
