"""Medians, percentiles and paired ratios of the benchmark."""

from __future__ import annotations

import pytest

from multiworld.bench.samples import Pairs, joint_spans, median, percentile


def test_percentile_is_always_a_sample_that_was_seen() -> None:
    samples = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [percentile(samples, percent) for percent in (0, 20, 21, 50, 99, 100)] == [1, 1, 2, 3, 5, 5]


def test_p99_leaves_out_one_of_a_hundred_and_none_of_fewer() -> None:
    assert percentile(range(1, 101), 99) == 99
    assert percentile(range(1, 100), 99) == 99


@pytest.mark.parametrize(("samples", "percent"), [([], 50), ([1.0], -1), ([1.0], 101)])
def test_percentile_refuses_what_has_none(samples: list[float], percent: float) -> None:
    with pytest.raises(ValueError):
        percentile(samples, percent)


def test_paired_ratio_withstands_a_machine_that_slows_down_half_way() -> None:
    reference = [1.0, 1.0, 1.0, 9.0, 9.0]
    pairs = Pairs([2 * sample for sample in reference], reference)
    assert pairs.ratio == 2
    assert pairs.ratio_quartiles == (2, 2)
    unpaired = Pairs([2.0, 2.0, 18.0, 18.0, 18.0], reference)
    assert median(unpaired.ours) / median(unpaired.reference) == 18  # what the pairs keep apart
    assert unpaired.ratio == 2


def test_difference_is_taken_pair_by_pair() -> None:
    assert Pairs([11.0, 25.0, 31.0], [10.0, 20.0, 30.0]).difference == 1


@pytest.mark.parametrize(("ours", "reference"), [([], []), ([1.0], [1.0, 2.0])])
def test_what_does_not_pair_is_refused(ours: list[float], reference: list[float]) -> None:
    with pytest.raises(ValueError, match="no pairs"):
        Pairs(ours, reference)


def test_joint_span_lasts_from_the_first_beginning_to_the_last_end() -> None:
    assert joint_spans([[(1.0, 4.0), (10.0, 11.0)], [(2.0, 3.0), (9.0, 12.0)]]) == [3.0, 3.0]
    with pytest.raises(ValueError):
        joint_spans([[(1.0, 2.0)], []])
