"""Who keeps whose copy, when one is taken, and which step all go on with."""

from __future__ import annotations

import pytest

from multiworld.training.copies.plan import (
    CopyFacts,
    Serving,
    Snapshot,
    check_copies,
    choose,
    is_due,
    kept_for,
    label_of,
    partners,
    to_keep,
)


def held(*steps: tuple[int, int, str], copies: tuple[tuple[int, int, str], ...] = ()) -> list[Snapshot]:
    """Each: step, shard and label."""
    own = [Snapshot(step=step, shard=shard, label=label) for step, shard, label in steps]
    return own + [Snapshot(step=step, shard=shard, label=label, is_copy=True) for step, shard, label in copies]


def test_a_copy_goes_to_another_host_and_its_processes_share_the_load() -> None:
    hosts = ["a", "a", "b", "b"]
    assert [partners(place, hosts, 1) for place in range(4)] == [(2,), (3,), (0,), (1,)]
    assert kept_for(3, hosts, 1) == (1,)


def test_the_copies_of_one_process_are_on_different_hosts_as_long_as_there_are_some() -> None:
    hosts = ["a", "b", "b", "c"]
    assert partners(0, hosts, 2) == (1, 3)
    assert partners(0, hosts, 3) == (1, 3, 2)


def test_on_one_host_the_next_process_keeps_the_copy() -> None:
    assert [partners(place, ["a"] * 3, 1) for place in range(3)] == [(1,), (2,), (0,)]


def test_the_first_snapshot_is_taken_at_once_and_then_one_in_each_interval() -> None:
    def due(step: int, begun: int) -> bool:
        return is_due(step, 10, [CopyFacts(begun=begun)])

    assert due(1, -1)
    assert not due(9, 1)
    assert due(10, 1)
    assert not due(19, 10)
    assert due(23, 10)  # the others were busy at 20


def test_nobody_begins_a_snapshot_before_all_have_ended_the_last_one() -> None:
    assert not is_due(20, 10, [CopyFacts(begun=10), CopyFacts(begun=10, is_busy=True)])
    assert is_due(20, 10, [CopyFacts(begun=10), CopyFacts()])  # a newcomer has begun none
    assert not is_due(12, 10, [CopyFacts(begun=10), CopyFacts()])
    assert not is_due(20, 10, [])


def test_what_all_shards_have_is_not_written_over() -> None:
    whole, behind = CopyFacts(whole=(10, 20)), CopyFacts(whole=(10,))
    assert to_keep({0: [whole], 1: [behind]}) == 10
    assert to_keep({0: [whole], 1: [behind, whole]}) == 20  # of two replicas, one is enough
    assert to_keep({0: [whole], 1: [CopyFacts()]}) == -1
    assert to_keep({}) == -1


def test_the_newest_step_that_all_shards_have_wins() -> None:
    plan = choose(["m", "n"], {"m": held((40, 0, "y"), (30, 0, "x")), "n": held((30, 1, "x"))}, 2, saved_step=20)
    assert plan is not None
    assert (plan.step, plan.label) == (30, "x")
    assert plan.servings == (Serving(shard=0, holder="m", source="m"), Serving(shard=1, holder="n", source="n"))


def test_shards_of_two_tries_at_one_step_are_never_put_together() -> None:
    assert choose(["m", "n"], {"m": held((40, 0, "x")), "n": held((40, 1, "y"))}, 2, saved_step=-1) is None


@pytest.mark.parametrize(("saved_step", "expected"), [(29, 30), (30, None), (31, None)])
def test_a_checkpoint_on_disk_wins_if_it_is_no_older(saved_step: int, expected: int | None) -> None:
    plan = choose(["m", "n"], {"m": held((30, 0, "x"), (30, 1, "x"))}, 2, saved_step)
    assert (plan.step if plan else None) == expected


def test_the_partner_serves_the_shard_of_a_host_that_is_gone() -> None:
    plan = choose(["new", "n"], {"new": [], "n": held((30, 1, "x"), copies=((30, 0, "x"),))}, 2, saved_step=-1)
    assert plan is not None
    assert plan.servings == (Serving(shard=0, holder="n", source="new"), Serving(shard=1, holder="n", source="n"))
    assert plan.sources == ("new", "n")


def test_one_replica_loads_the_state_that_to_which_least_must_be_sent() -> None:
    whole = held((30, 0, "x"), (30, 1, "x"))
    plan = choose(["a0", "a1", "b0", "b1"], {"b0": whole, "b1": whole, "a1": whole}, 2, saved_step=-1)
    assert plan is not None
    assert plan.sources == ("b0", "b1")


def test_serving_is_dealt_among_those_that_can() -> None:
    whole = held((30, 0, "x"), (30, 1, "x"))
    plan = choose(["a0", "a1", "b0", "b1"], {"b0": whole, "b1": held((30, 0, "x"))}, 2, saved_step=-1)
    assert plan is not None
    assert plan.servings == (Serving(shard=0, holder="b0", source="b0"), Serving(shard=1, holder="b0", source="b1"))


def test_a_label_tells_one_try_at_a_step_from_another() -> None:
    assert label_of(3, [b"a", b"b"]) == label_of(3, [b"a", b"b"])
    assert (
        len({label_of(3, [b"a", b"b"]), label_of(4, [b"a", b"b"]), label_of(3, [b"ab"]), label_of(3, [b"b", b"a"])})
        == 4
    )


@pytest.mark.parametrize(
    ("copies", "replica_size", "world_size", "problem"),
    [
        (1, 1, 4, "each replica is one process"),
        (2, 2, 2, "2 - 1 = 1 others that can keep one: give 1 at most"),
    ],
)
def test_copies_that_are_of_no_use_or_cannot_be_kept_are_refused(
    copies: int, replica_size: int, world_size: int, problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        check_copies(copies, replica_size, world_size)


def test_copies_that_fit_are_taken() -> None:
    check_copies(0, 1, 1)
    check_copies(1, 2, 2)
