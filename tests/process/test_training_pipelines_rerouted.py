"""Peers compute for a process that a pipeline lost: the losses keep their bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from multiworld.testing import scaled

from .training_pipeline_program import Options
from .training_pipelines import GPT, TOTAL, losses, train, undisturbed

pytestmark = [pytest.mark.process, pytest.mark.timeout(scaled(120))]  # each trains once or twice


@pytest.mark.parametrize(("rank", "moment"), [(0, "forward"), (3, "backward"), (1, "reduced"), (2, "committed")])
def test_losses_keep_their_bits_when_peers_compute_for_a_lost_stage(tmp_path: Path, rank: int, moment: str) -> None:
    seen = train(tmp_path / "run", Options(kills=((rank, 4, moment),), waits_for=TOTAL, moves_are_dear=True))
    assert losses(seen) == undisturbed()
    (after,) = {one.num_reroutes for one in seen[5]}
    if after:  # no replacement has come yet
        assert {one.rank: one.layers for one in seen[5]}.items() <= {one.rank: one.layers for one in seen[3]}.items()
    assert {one.num_reroutes for each in seen.values() for one in each} == {0, 1}
    if len(seen[TOTAL - 1]) == 4:  # the replacement has the lost place
        assert {one.num_reroutes for one in seen[TOTAL - 1]} == {0}


def test_a_second_loss_while_peers_compute_for_the_first_is_survived(tmp_path: Path) -> None:
    kills = ((3, 4, "backward"), (2, 5, "forward"))
    seen = train(tmp_path / "run", Options(kills=kills, waits_for=TOTAL, moves_are_dear=True), num_processes=6)
    assert losses(seen) == undisturbed()
    assert 1 in {one.num_reroutes for each in seen.values() for one in each}


def test_a_newcomer_gets_the_place_that_peers_have_computed_for(tmp_path: Path) -> None:
    options = Options(kills=((3, 4, "backward"),), waits_for_newcomer_in=6, moves_are_dear=True)
    seen = train(tmp_path / "run", options)
    assert losses(seen) == undisturbed()
    first, rerouted, last = seen[0], seen[6], seen[TOTAL - 1]
    assert {one.num_reroutes for one in rerouted} == {1}
    assert {one.num_reroutes for one in last} == {0}
    assert {one.rank: one.layers for one in last} == {one.rank: one.layers for one in first}


def test_sums_over_peers_are_right_without_exact(tmp_path: Path) -> None:
    options = replace(GPT, exact=False, dropout=0.0)
    expected = undisturbed(options)
    options = replace(options, kills=((1, 4, "backward"),), waits_for=TOTAL, moves_are_dear=True, layers_of_a_process=9)
    seen = train(tmp_path / "killed", options)
    assert losses(seen) == pytest.approx(expected, rel=1e-6)
    assert 1 in {one.num_reroutes for each in seen.values() for one in each}


def test_peers_put_gradients_of_weights_into_bubbles(tmp_path: Path) -> None:
    kills = ((3, 4, "backward"), (2, 5, "weights"))
    options = Options(kills=kills, waits_for=TOTAL, moves_are_dear=True, schedule="auto")
    seen = train(tmp_path / "run", options, num_processes=6)
    assert losses(seen) == undisturbed()
    assert 1 in {one.num_reroutes for each in seen.values() for one in each}
    assert any(one.num_put_off > 0 for each in seen.values() for one in each if one.num_reroutes)
