"""How parameters lie in flat buckets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from multiworld.training.engine.buckets import Bucket, lay_out


def parameters_of(bucket: Bucket) -> list[int]:
    return [slot.parameter for slot in bucket.slots]


def test_the_last_parameters_come_first() -> None:
    (bucket,) = lay_out([(2, 4, "f"), (3, 4, "f"), (1, 4, "f")])
    assert parameters_of(bucket) == [2, 1, 0]
    assert [(slot.begin, slot.num_elements) for slot in bucket.slots] == [(0, 1), (1, 3), (4, 2)]
    assert bucket.num_elements == 6


def test_a_bucket_is_full_before_it_would_be_too_large() -> None:
    buckets = lay_out([(10, 4, "f")] * 5, bucket_bytes=80, first_bucket_bytes=40)
    assert [parameters_of(each) for each in buckets] == [[4], [3, 2], [1, 0]]


def test_one_that_is_larger_than_a_bucket_has_its_own() -> None:
    buckets = lay_out([(1, 4, "f"), (1000, 4, "f"), (1, 4, "f")], bucket_bytes=40, first_bucket_bytes=40)
    assert [parameters_of(each) for each in buckets] == [[2], [1], [0]]


def test_kinds_are_kept_apart() -> None:
    buckets = lay_out([(1, 4, "float"), (1, 2, "half"), (1, 4, "float")])
    assert [(each.kind, parameters_of(each)) for each in buckets] == [("float", [2, 0]), ("half", [1])]


def test_nothing_makes_no_bucket() -> None:
    assert lay_out([]) == []


SHAPES = st.lists(st.tuples(st.integers(0, 50), st.sampled_from([2, 4]), st.sampled_from(["a", "b"])), max_size=30)


@given(SHAPES, st.integers(1, 200), st.integers(1, 200))
def test_each_element_lies_in_one_place(
    shapes: list[tuple[int, int, str]], bucket_bytes: int, first_bucket_bytes: int
) -> None:
    buckets = lay_out(shapes, bucket_bytes=bucket_bytes, first_bucket_bytes=first_bucket_bytes)
    assert sorted(index for each in buckets for index in parameters_of(each)) == list(range(len(shapes)))
    for bucket in buckets:
        position = 0
        for slot in bucket.slots:
            assert slot.begin == position
            assert slot.num_elements == shapes[slot.parameter][0]
            assert bucket.kind == shapes[slot.parameter][2]
            position += slot.num_elements
        assert position == bucket.num_elements
