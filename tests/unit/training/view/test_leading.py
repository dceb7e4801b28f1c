"""Which member speaks: always exactly one of those that are there."""

from __future__ import annotations

from multiworld.training.events import MembershipChanged
from multiworld.training.view.leading import Leading


def change(
    ranks: tuple[int, ...], came: tuple[int, ...] = (), gone: tuple[int, ...] = (), generation: int = 1
) -> MembershipChanged:
    return MembershipChanged(
        job="gpt", member="m", rank=0, generation=generation, step=0, ranks=ranks, came=came, gone=gone
    )


def leaders(members: dict[int, Leading], told: MembershipChanged) -> list[int]:
    return [rank for rank, each in members.items() if each.take(told)]


def test_the_lowest_rank_speaks_first_and_nobody_before_the_first_membership() -> None:
    members = {rank: Leading(rank) for rank in range(3)}

    assert not any(each.is_leading for each in members.values())
    assert leaders(members, change((0, 1, 2), came=(0, 1, 2))) == [0]


def test_the_next_one_goes_on_when_the_speaker_is_lost() -> None:
    members = {rank: Leading(rank) for rank in range(3)}
    leaders(members, change((0, 1, 2)))
    del members[0]

    assert leaders(members, change((1, 2), gone=(0,))) == [1]


def test_a_replacement_with_a_lower_rank_does_not_take_over() -> None:
    members = {rank: Leading(rank) for rank in range(3)}
    leaders(members, change((0, 1, 2)))
    members[0] = Leading(0)

    assert leaders(members, change((0, 1, 2), came=(0,), gone=(0,))) == [1]
    del members[1]
    assert leaders(members, change((0, 2), gone=(1,))) == [2]
    del members[2]
    assert leaders(members, change((0,), gone=(2,))) == [0]


def test_those_that_came_together_speak_in_the_order_of_their_ranks() -> None:
    members = {5: Leading(5)}
    leaders(members, change((5,)))
    members |= {rank: Leading(rank) for rank in (1, 2)}

    assert leaders(members, change((1, 2, 5), came=(1, 2))) == [5]
    del members[5]
    assert leaders(members, change((1, 2), gone=(5,))) == [1]
