"""Which places of which epoch a step has."""

from __future__ import annotations

import pytest

from multiworld.training.data.positions import Positions


def places_of(positions: Positions, step: int) -> list[tuple[int, int]]:
    return [(*place,) for number in range(positions.num_micro_batches) for place in positions.places(step, number)]


def test_a_step_at_the_end_of_an_epoch_goes_on_with_the_next() -> None:
    positions = Positions(num_samples=10, global_batch=4, micro_batch=2)
    assert places_of(positions, 0) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert places_of(positions, 2) == [(0, 8), (0, 9), (1, 0), (1, 1)]
    assert [positions.epoch_of(step) for step in range(6)] == [0, 0, 0, 1, 1, 2]


def test_each_place_comes_once_in_each_epoch() -> None:
    positions = Positions(num_samples=10, global_batch=4, micro_batch=2, epochs=3)
    assert positions.num_steps == 8  # 30 samples, and 2 of a fourth epoch that complete the last step
    places = [place for step in range(8) for place in places_of(positions, step)]
    assert places == [(number // 10, number % 10) for number in range(32)]


def test_drop_last_leaves_out_what_is_no_whole_step() -> None:
    positions = Positions(num_samples=10, global_batch=4, micro_batch=2, drop_last=True, epochs=3)
    assert positions.num_steps == 6
    assert places_of(positions, 1) == [(0, 4), (0, 5), (0, 6), (0, 7)]
    assert places_of(positions, 2) == [(1, 0), (1, 1), (1, 2), (1, 3)]


def test_without_epochs_there_is_no_end() -> None:
    positions = Positions(num_samples=10, global_batch=4, micro_batch=4)
    assert positions.num_steps is None
    assert positions.places(1_000_000, 0) == [(400_000, 0), (400_000, 1), (400_000, 2), (400_000, 3)]


@pytest.mark.parametrize(
    ("sizes", "what"),
    [
        ((100, 64, 6), r"64 = 10 \* 6 \+ 4. Take micro_batch=4, or global_batch=60 or 66"),
        ((100, 4, 6), r"4 = 0 \* 6 \+ 4. Take micro_batch=4, or global_batch=6"),
        ((40, 64, 4), "the dataset has 40 samples, fewer than the global_batch=64 of one step"),
        ((100, 0, 4), "global_batch=0 is impossible"),
        ((100, 4, -1), "micro_batch=-1 is impossible"),
    ],
)
def test_sizes_that_do_not_fit_show_the_arithmetic(sizes: tuple[int, int, int], what: str) -> None:
    num_samples, global_batch, micro_batch = sizes
    with pytest.raises(ValueError, match=what):
        Positions(num_samples=num_samples, global_batch=global_batch, micro_batch=micro_batch)


def test_a_size_that_is_no_number_is_refused() -> None:
    with pytest.raises(TypeError, match=r"micro_batch=2\.0 is no number of samples"):
        Positions(num_samples=100, global_batch=4, micro_batch=2.0)  # type: ignore[arg-type]


def test_steps_and_micro_batches_that_do_not_exist_are_refused() -> None:
    positions = Positions(num_samples=10, global_batch=4, micro_batch=2, epochs=1)
    with pytest.raises(ValueError, match=r"there is no step 3: 1 epochs have 3 steps, from 0"):
        positions.places(3, 0)
    with pytest.raises(ValueError, match="there is no micro-batch 2: a step has 2"):
        positions.places(0, 2)
    with pytest.raises(ValueError, match="epochs=0 is impossible"):
        Positions(num_samples=10, global_batch=4, micro_batch=2, epochs=0)
