"""A newcomer gets layers beside the steps: the losses keep their bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from multiworld.testing import scaled
from multiworld.training.pipeline.growing import PREFETCH

from .training_pipeline_program import Options
from .training_pipelines import CHAIN, GPT, TOTAL, losses, train, undisturbed

pytestmark = [pytest.mark.process, pytest.mark.timeout(scaled(120))]  # each trains once or twice


@pytest.mark.parametrize("options", [CHAIN, GPT], ids=["chain", "tied"])
def test_a_newcomer_gets_layers_beside_the_steps(tmp_path: Path, options: Options) -> None:
    expected = undisturbed(options)
    options = replace(options, kills=((3, 2, "backward"),), waits_for_newcomer_in=4, moves_are_large=True)
    seen = train(tmp_path / "killed", options)
    assert losses(seen) == expected
    meanwhile = [each for each in seen.values() if {one.policy for one in each} == {PREFETCH}]
    assert len(meanwhile) > 1  # one source sends one layer in a step
    assert [len({one.rank for one in each if one.layers}) for each in meanwhile] == [3] * len(meanwhile)
    assert len({one.rank for one in seen[TOTAL - 1] if one.layers}) == 4


@pytest.mark.parametrize("rank", [0, 2])
def test_a_loss_while_a_newcomer_gets_layers_is_survived(tmp_path: Path, rank: int) -> None:
    kills = ((3, 2, "backward"), (rank, 0, "prefetch"))
    options = Options(kills=kills, waits_for_newcomer_in=4, moves_are_large=True, waits_for=TOTAL)
    seen = train(tmp_path / "killed", options, num_processes=6)
    assert losses(seen) == undisturbed()
    assert PREFETCH in {one.policy for each in seen.values() for one in each}
    assert len([path for path in (tmp_path / "killed").iterdir() if path.name.startswith(f"{rank}-")]) == 2


def test_a_training_ends_while_a_newcomer_gets_layers(tmp_path: Path) -> None:
    options = Options(kills=((3, TOTAL - 4, "backward"),), waits_for_newcomer_in=TOTAL - 3, moves_are_large=True)
    seen = train(tmp_path / "run", options)
    assert losses(seen) == undisturbed()
    assert {one.policy for one in seen[TOTAL - 1]} == {PREFETCH}
    assert len(seen[TOTAL - 1]) == 4
