"""Which waiting requests are executed together."""

import pytest

from multiworld.serving.graph import Batch
from multiworld.serving.replica.batching import BatchQueue


def queue(max_size: int = 4, max_wait_s: float = 1.0) -> BatchQueue[str]:
    return BatchQueue(Batch(max_size=max_size, max_wait_s=max_wait_s))


def test_without_batching_each_request_goes_at_once_in_order() -> None:
    waiting: BatchQueue[str] = BatchQueue(None)
    for name in "abc":
        waiting.put(name, 1, "k", now=0.0)
    assert waiting.due() == 0.0
    assert [waiting.take(now=0.0) for _ in range(4)] == [["a"], ["b"], ["c"], []]


def test_a_batch_goes_when_it_is_full() -> None:
    waiting = queue()
    for name in "abc":
        waiting.put(name, 1, "k", now=0.0)
    assert waiting.take(now=0.5) == []
    waiting.put("d", 1, "k", now=0.5)
    waiting.put("e", 1, "k", now=0.5)
    assert waiting.take(now=0.5) == ["a", "b", "c", "d"]
    assert waiting.take(now=0.5) == []
    assert waiting.due() == 1.5
    assert waiting.take(now=1.5) == ["e"]
    assert waiting.due() is None


def test_the_oldest_request_waits_no_longer_than_it_may() -> None:
    waiting = queue()
    waiting.put("a", 1, "k", now=3.0)
    assert waiting.due() == 4.0
    assert waiting.oldest == 3.0
    assert waiting.take(now=3.99) == []
    assert waiting.take(now=4.0) == ["a"]


def test_kinds_do_not_mix_and_full_batches_starve_nobody() -> None:
    waiting = queue(max_size=2)
    waiting.put("odd", 1, "other", now=0.0)
    for name in "abcd":
        waiting.put(name, 1, "k", now=0.5)
    assert waiting.take(now=0.5) == ["a", "b"]
    assert waiting.take(now=1.0) == ["odd"], "its waiting is over, though a full batch of another kind is there"
    assert waiting.take(now=1.0) == ["c", "d"]


def test_a_request_of_more_rows_than_a_batch_goes_alone_and_in_its_turn() -> None:
    waiting = queue()
    waiting.put("small", 1, "k", now=0.0)
    waiting.put("huge", 9, "k", now=0.0)
    waiting.put("last", 1, "k", now=0.0)
    assert waiting.take(now=0.0) == ["small"]
    assert waiting.take(now=0.0) == ["huge"]
    assert waiting.take(now=0.0) == []
    assert waiting.rows == 1


def test_a_suspect_is_executed_alone_at_once() -> None:
    waiting = queue()
    waiting.put("a", 1, "k", now=0.0)
    waiting.put("suspect", 1, "k", now=0.0, alone=True)
    waiting.put("b", 1, "k", now=0.0)
    assert [waiting.take(now=0.0) for _ in range(3)] == [["a"], ["suspect"], []]


def test_an_urgent_request_waits_for_nothing_more() -> None:
    waiting = queue()
    waiting.put("a", 1, "k", now=0.0)
    waiting.put("urgent", 1, "k", now=0.0, urgent=True)
    assert waiting.due() == 0.0
    assert waiting.take(now=0.0) == ["a", "urgent"]


def test_dropping_frees_the_place_in_the_batch() -> None:
    waiting = queue(max_size=2)
    waiting.put("a", 1, "k", now=0.0)
    waiting.put("b", 1, "k", now=0.0)
    assert waiting.drop("a")
    assert not waiting.drop("a")
    assert "a" not in waiting
    assert len(waiting) == 1
    assert waiting.take(now=0.0) == []
    waiting.put("c", 1, "k", now=0.0)
    assert waiting.take(now=0.0) == ["b", "c"]


def test_tuning_applies_to_what_waits() -> None:
    waiting = queue(max_size=8)
    for name in "abc":
        waiting.put(name, 1, "k", now=0.0)
    waiting.tune(Batch(max_size=2, max_wait_s=5.0))
    assert waiting.take(now=0.0) == ["a", "b"]
    assert waiting.due() == 5.0
    waiting.tune(None)
    assert waiting.take(now=0.0) == ["c"]


def test_empty_requests_count_as_one_row() -> None:
    waiting = queue(max_size=2, max_wait_s=0.0)
    for name in "abc":
        waiting.put(name, 0, "k", now=0.0)
    assert waiting.take(now=0.0) == ["a", "b"]


def test_a_request_cannot_wait_twice() -> None:
    waiting = queue()
    waiting.put("a", 1, "k", now=0.0)
    with pytest.raises(ValueError, match="waits already"):
        waiting.put("a", 1, "k", now=0.0)


def test_what_is_suspected_no_more_goes_with_others_in_its_turn() -> None:
    waiting = queue()
    for name in "abc":
        waiting.put(name, 1, "k", now=0.0, alone=name != "c")
    waiting.accompany("a")
    waiting.accompany("a")
    waiting.accompany("unknown")
    assert waiting.take(now=0.0) == ["a"], "b goes alone"
    waiting.accompany("b")
    assert waiting.take(now=0.0) == []
    assert waiting.due() == 1.0
    assert waiting.take(now=1.0) == ["b", "c"]


def test_what_is_suspected_no_more_stays_urgent() -> None:
    waiting = queue()
    waiting.put("a", 1, "k", now=0.0, urgent=True, alone=True)
    waiting.accompany("a")
    assert waiting.take(now=0.0) == ["a"]
    singly: BatchQueue[str] = BatchQueue(None)
    singly.put("a", 1, "k", now=0.0, alone=True)
    singly.accompany("a")
    assert singly.take(now=0.0) == ["a"]
