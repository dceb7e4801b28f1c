"""Where several nodes meet, and under which name."""

from __future__ import annotations

from multiworld.remote.between.meeting import Member, name_of, store_of

ONE = Member(number=1, generation=3, store="tcp://a:1")
OTHER = Member(number=2, generation=7, store="tcp://b:2")
LAUNCHED = Member(number=3, generation=1, store=None)


def test_a_name_says_who_meets_in_which_generation() -> None:
    assert name_of([ONE, OTHER], 5) == "remote-between-1.3-2.7-5"


def test_a_name_of_many_is_short_and_differs_by_generation() -> None:
    many = [Member(number=number, generation=1, store=None) for number in range(200)]
    replaced = [*many[:-1], Member(number=199, generation=2, store=None)]
    names = {name_of(many, 1), name_of(replaced, 1)}
    assert len(names) == 2
    assert all(len(name) < 100 for name in names)


def test_nodes_with_stores_of_their_own_meet_at_the_first_ones() -> None:
    assert store_of([ONE, OTHER], None) == "tcp://a:1"


def test_nodes_of_the_launcher_meet_at_its_store_which_a_node_beside_it_is_told() -> None:
    assert store_of([LAUNCHED, LAUNCHED], "tcp://agent:9") is None
    assert store_of([ONE, LAUNCHED], "tcp://agent:9") == "tcp://agent:9"
