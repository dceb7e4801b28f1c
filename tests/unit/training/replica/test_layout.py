"""Which processes are one replica, and which places reduce together."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from multiworld.training.replica.layout import (
    check_replica_size,
    lost_with,
    places_of_shard,
    share_of_replicas,
    whole_replicas,
)


@dataclass(frozen=True)
class Member:
    rank: int
    unit: str

    @property
    def id(self) -> str:
        return f"{self.rank}{self.unit}"


def test_a_replica_counts_once_all_its_shards_are_there() -> None:
    members = [Member(1, "a"), Member(4, "c"), Member(0, "a"), Member(3, "b")]
    assert whole_replicas(members, 2) == [Member(0, "a"), Member(1, "a")]


def test_replicas_stand_in_the_order_of_their_first_member() -> None:
    members = [Member(5, "c"), Member(0, "a"), Member(4, "c"), Member(1, "a")]
    assert [member.rank for member in whole_replicas(members, 2)] == [4, 5, 0, 1]


def test_a_process_of_the_replica_before_is_none_of_the_one_that_returned() -> None:
    assert whole_replicas([Member(2, "old"), Member(3, "new")], 2) == []


def test_a_replica_of_one_process_is_whole() -> None:
    members = [Member(2, "a"), Member(0, "b")]
    assert whole_replicas(members, 1) == members


def test_all_processes_of_a_replica_are_lost_together() -> None:
    members = [Member(0, "a"), Member(1, "a"), Member(2, "b"), Member(3, "b")]
    assert lost_with({"3b"}, members) == {"2b", "3b"}
    assert lost_with(set(), members) == set()


def test_each_place_reduces_with_those_of_its_shard() -> None:
    assert [list(places_of_shard(place, 6, 2)) for place in (0, 3, 4)] == [[0, 2, 4], [1, 3, 5], [0, 2, 4]]


def test_all_processes_of_a_replica_compute_its_share() -> None:
    assert share_of_replicas([(0, 1), (2,)], 2) == [(0, 1), (0, 1), (2,), (2,)]


def test_processes_that_make_no_whole_replicas_are_refused() -> None:
    check_replica_size(2, 4)
    check_replica_size(3, None)
    with pytest.raises(ValueError, match="replica_size=0"):
        check_replica_size(0, 4)
    with pytest.raises(ValueError, match=r"5 / 2 is no whole number: start 6"):
        check_replica_size(2, 5)
