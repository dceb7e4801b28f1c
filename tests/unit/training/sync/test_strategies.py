"""What a program may choose, and what is refused."""

import dataclasses

import pytest

from multiworld.training.sync.strategies import DiLoCo, LocalSGD
from multiworld.training.sync.timetable import Timetable


def test_one_fragment_is_plain_diloco() -> None:
    plain = DiLoCo(every=50)
    assert plain.timetable(100) == Timetable(every=50, total=100)
    assert plain.share_kept == 0


def test_several_fragments_overlap_with_computing_and_are_mixed() -> None:
    streaming = DiLoCo(every=50, fragments=4)
    assert streaming.timetable() == Timetable(every=50, fragments=4, overlap=1)
    assert streaming.share_kept == 0.5


def test_fragments_at_every_step_have_no_time_to_overlap() -> None:
    dense = DiLoCo(every=4, fragments=4)
    assert (dense.inner_overlap, dense.share_kept) == (0, 0)


def test_what_was_given_is_not_replaced() -> None:
    assert DiLoCo(every=50, fragments=4, overlap=0, alpha=0.25).share_kept == 0.25
    assert DiLoCo(every=50, overlap=3, alpha=0.0).timetable() == Timetable(every=50, overlap=3)


@pytest.mark.parametrize("alpha", [-0.1, 1.0])
def test_a_member_that_would_never_take_the_anchor_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match=f"alpha={alpha}"):
        DiLoCo(every=50, alpha=alpha)


def test_bad_numbers_are_refused_where_they_are_given() -> None:
    with pytest.raises(ValueError, match="every=0"):
        LocalSGD(every=0)
    with pytest.raises(ValueError, match="choose 0 to 11"):
        DiLoCo(every=50, fragments=4, overlap=12)
    with pytest.raises(ValueError, match="choose None, 'bfloat16' or 'int8'"):
        DiLoCo(every=50, compress="int4")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="returns an optimizer"):
        DiLoCo(every=50, outer="sgd")  # type: ignore[arg-type]


def test_strategies_cannot_be_changed_later() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        LocalSGD(every=20).every = 3  # type: ignore[misc]
