"""What is said of the pipelines of a training, and what of them is refused."""

from __future__ import annotations

import pytest

from multiworld.world.launcher.news import TrainingPipelines
from multiworld.world.launcher.pipelines import LOST_RANK, PipelineRanks, pipelines_text, sizes_of


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ((3,), "1 pipeline"),
        ((2, 2, 2), "3 pipelines of 2"),
        ((3, 2), "2 pipelines of 2 and 3"),
        ((3, 2, 2), "3 pipelines of 2, 2 and 3"),
        ((5, *(2,) * 15), "16 pipelines of 2 to 5"),
    ],
)
def test_sizes_are_told_one_by_one_or_as_a_range(sizes: tuple[int, ...], text: str) -> None:
    assert pipelines_text(sizes) == text


def test_a_stage_has_the_layers_up_to_the_next_one() -> None:
    pipeline = PipelineRanks(ranks=(4, 1, 2), starts=(0, 2, 3), num_micro_batches=4)
    assert [pipeline.layers_of(stage, 9) for stage in range(3)] == [range(2), range(2, 3), range(3, 9)]


@pytest.mark.parametrize(("starts", "busy", "computed"), [((0,), (), ()), ((0, 2), (0.5,), ()), ((0, 2), (), (1,))])
def test_stages_that_do_not_match_are_refused(
    starts: tuple[int, ...], busy: tuple[float, ...], computed: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match="2 ranks"):
        PipelineRanks(ranks=(0, 1), starts=starts, num_micro_batches=4, busy=busy, computed=computed)


def test_a_lost_process_is_not_counted_and_does_not_wait() -> None:
    whole = PipelineRanks(ranks=(2, 3), starts=(0, 2), num_micro_batches=4)
    broken = PipelineRanks(ranks=(0, LOST_RANK), starts=(0, 2), num_micro_batches=3, busy=(0.75, 0.0), computed=(3, 0))
    assert sizes_of((broken, whole)) == (1, 2)
    assert (broken.idle, whole.idle) == (0.25, None)
    assert [whole.num_computed(1), broken.num_computed(0), broken.num_computed(1)] == [4, 3, 0]


def test_more_members_than_an_agent_keeps_are_refused() -> None:
    many = PipelineRanks(ranks=tuple(range(5000)), starts=tuple(range(5000)), num_micro_batches=4)
    with pytest.raises(ValueError, match="out of range"):
        TrainingPipelines(name="gpt", generation=1, step=0, replicas=5000, num_layers=5000, pipelines=(many,))
