"""Which member speaks: always exactly one of those that are there."""

from __future__ import annotations

from multiworld.training.events import MembershipChanged
from multiworld.training.recovery.agreement import Rules, Situation, agree
from multiworld.training.recovery.records import Announcement, Generation, LostMember, Member
from multiworld.training.view.leading import is_leading
from tests.unit.training.test_recovery_events import FakeTeam, events_of


def member(name: str, rank: int) -> Member:
    return Member(id=name, rank=rank, host="h")


def after(
    before: Generation | None, *come: Member, lost: tuple[Member, ...] = (), num_layers: int = 0, layers: int = 0
) -> Generation:
    """Return what is agreed on when these come and are lost. ``layers``: how many of them each survivor holds."""
    left = [] if before is None else [each for each in before.members if each not in lost]
    gone = tuple(LostMember(id=each.id, cause="PeerDiedError") for each in lost)
    said = [Announcement(member=each, lost=gone, num_layers=num_layers, layers=tuple(range(layers))) for each in left]
    said += [Announcement(member=each, has_state=False, num_layers=num_layers, is_whole=True) for each in come]
    here = {each.member.id: each for each in said}
    made = agree(Situation(current=before, here=frozenset(here), said=here), Rules())
    assert isinstance(made, Generation), made
    return made


def leaders(before: Generation | None, now: Generation) -> list[str]:
    """Return the ids of the members that speak in a generation, each by what it sees of it."""
    return [each.id for each in now.members if is_leading(change_seen_by(each, before, now))]


def change_seen_by(one: Member, before: Generation | None, now: Generation) -> MembershipChanged:
    was_there = before is not None and one in before.members
    events, seen = events_of(FakeTeam(generation=now, member=one))
    events.generation_began(before if was_there else None, now, now.step)
    change = seen[-1]
    assert isinstance(change, MembershipChanged)
    return change


A, B, C = member("a", 0), member("b", 1), member("c", 2)


def test_the_lowest_rank_speaks_first() -> None:
    assert leaders(None, after(None, C, A, B)) == ["a"]


def test_the_next_one_goes_on_when_the_speaker_is_lost() -> None:
    first = after(None, A, B, C)
    assert leaders(first, after(first, lost=(A,))) == ["b"]


def test_a_replacement_with_a_lower_rank_does_not_take_over() -> None:
    first, again = after(None, A, B, C), member("d", 0)
    second = after(first, again, lost=(A,))
    assert leaders(first, second) == ["b"]
    third = after(second, lost=(B,))
    assert leaders(second, third) == ["c"]
    assert leaders(third, after(third, lost=(C,))) == ["d"]


def test_those_that_came_together_speak_in_the_order_of_their_ranks() -> None:
    first = after(None, member("z", 5))
    second = after(first, C, B)
    assert leaders(first, second) == ["z"]
    assert leaders(second, after(second, lost=(first.members[0],))) == ["b"]


def test_one_speaks_where_a_newcomer_has_the_rank_of_another_member() -> None:
    first = after(None, A, B, C)
    second = after(first, member("d", 1))  # the launcher has numbered its hosts anew
    assert leaders(first, second) == ["a"]
    third = after(second, lost=(A,))
    assert leaders(second, third) == ["b"]


def test_one_that_stayed_speaks_where_all_begin_again_for_a_layer_that_is_lost() -> None:
    first = after(None, A, B, C, num_layers=2)
    begun = after(first, member("d", 0), lost=(A, B), num_layers=2, layers=1)
    assert begun.is_restart
    assert leaders(first, begun) == ["c"]
