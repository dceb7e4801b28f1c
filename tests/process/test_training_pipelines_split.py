"""Pipelines with a split backward: the losses have the bits of a whole one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from multiworld.testing import scaled

from .training_pipeline_program import Options
from .training_pipelines import GPT, TOTAL, losses, train, undisturbed

pytestmark = [pytest.mark.process, pytest.mark.timeout(scaled(120))]  # each trains once or twice


@pytest.mark.parametrize(("rank", "moment"), [(0, "forward"), (3, "backward"), (2, "weights"), (1, "reduced")])
def test_a_split_backward_has_the_bits_of_a_whole_one_through_a_loss(tmp_path: Path, rank: int, moment: str) -> None:
    options = Options(kills=((rank, 4, moment),), waits_for=TOTAL, schedule="zero-bubble")
    seen = train(tmp_path / "run", options)
    assert losses(seen) == undisturbed()
    assert all(one.num_put_off > 0 for each in seen.values() for one in each)


def test_tied_weights_keep_their_bits_with_a_split_backward(tmp_path: Path) -> None:
    expected = undisturbed(GPT)
    options = replace(GPT, kills=((1, 4, "weights"),), waits_for=TOTAL, schedule="zero-bubble")
    seen = train(tmp_path / "killed", options)
    assert losses(seen) == expected
    assert all(one.num_put_off > 0 for each in seen.values() for one in each)
