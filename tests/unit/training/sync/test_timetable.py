"""Which fragment is sent and applied after which inner step."""

import pytest

from multiworld.training.sync.timetable import Due, Timetable


def test_plain_diloco_sends_and_applies_the_whole_model_after_each_period() -> None:
    table = Timetable(every=4)
    assert [step for step in range(12) if table.due(step) != Due()] == [3, 7, 11]
    assert table.due(3) == Due(send=(0,), apply=(0,))


def test_fragments_are_spread_over_the_period_and_sent_an_overlap_earlier() -> None:
    table = Timetable(every=8, fragments=2, overlap=1)
    assert {step: table.due(step) for step in range(8) if table.due(step) != Due()} == {
        2: Due(send=(0,)),
        3: Due(apply=(0,)),
        6: Due(send=(1,)),
        7: Due(apply=(1,)),
    }
    assert [table.under_way(step) for step in range(8)] == [(), (), (0,), (), (), (), (1,), ()]


def test_the_last_step_synchronises_everything_and_takes_what_is_under_way() -> None:
    assert Timetable(every=10, total=13).due(12) == Due(send=(0,), apply=(0,), is_last=True)
    table = Timetable(every=8, fragments=2, overlap=2, total=12)
    assert table.due(9) == Due(send=(0,))
    assert table.due(11) == Due(send=(1,), apply=(0, 1), is_last=True)


def test_nothing_is_sent_that_would_be_applied_after_the_end() -> None:
    table = Timetable(every=8, fragments=2, overlap=2, total=11)
    assert table.due(9) == Due()
    assert table.due(10) == Due(send=(0, 1), apply=(0, 1), is_last=True)


def test_rounds_are_numbered_from_the_beginning_of_the_training() -> None:
    table = Timetable(every=8, fragments=2, total=18)
    assert [table.steps_of(number) for number in range(6)] == [
        range(4),
        range(4, 8),
        range(8, 12),
        range(12, 16),
        range(16, 18),
        range(18, 18),
    ]
    assert [table.round_of(step) for step in (0, 3, 4, 15, 16, 17, 18)] == [0, 0, 1, 3, 4, 4, 5]


@pytest.mark.parametrize(
    ("every", "fragments", "overlap", "part"),
    [
        (0, 1, 0, "every=0"),
        (4, 5, 0, "choose 1 to every=4"),
        (4, 0, 0, "fragments=0"),
        (8, 2, 4, "choose 0 to 3"),
        (8, 2, -1, "overlap=-1"),
    ],
)
def test_numbers_that_do_not_fit_each_other_are_refused(every: int, fragments: int, overlap: int, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        Timetable(every=every, fragments=fragments, overlap=overlap)
