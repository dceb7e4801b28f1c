"""A step in which one pipeline was broken: what the others have computed is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from multiworld.testing import scaled

from .training_pipeline_program import GLOBAL_BATCH, MICRO_BATCH, Options
from .training_pipelines import CHAIN, GPT, TOTAL, Committed, losses, train, undisturbed

pytestmark = [pytest.mark.process, pytest.mark.timeout(scaled(120))]  # each trains once or twice


@pytest.mark.parametrize("options", [CHAIN, GPT], ids=["chain", "tied"])
def test_a_pipeline_that_lost_nobody_computes_nothing_again(tmp_path: Path, options: Options) -> None:
    expected = undisturbed(options)
    seen = train(tmp_path / "killed", replace(options, kills=((1, 4, "last"),), waits_for=TOTAL))
    assert losses(seen) == expected
    check_unbroken(seen[4], lost=1)


def test_without_exact_sums_are_kept_too(tmp_path: Path) -> None:
    options = replace(GPT, exact=False, dropout=0.0)
    expected = undisturbed(options)
    seen = train(tmp_path / "killed", replace(options, kills=((1, 4, "last"),), waits_for=TOTAL))
    assert losses(seen) == pytest.approx(expected, rel=1e-5)
    check_unbroken(seen[4], lost=1)


def check_unbroken(seen: Sequence[Committed], lost: int) -> None:
    """Assert that no member of one pipeline computed a micro-batch twice, and nobody did so with any of its own."""
    tries = [Counter(one.forwards) for one in seen if one.rank != lost]
    assert sorted(max(each.values()) for each in tries) == [1, 1, 2]
    num_micro_batches = GLOBAL_BATCH // MICRO_BATCH
    again = {number for each in tries for number, count in each.items() if count > 1}
    assert len(again) == num_micro_batches // 2


@pytest.mark.parametrize("second", ["redo", "move"])
def test_a_second_loss_in_a_step_that_was_kept_in_part(tmp_path: Path, second: str) -> None:
    options = Options(kills=((3, 4, "last"), (2, 4, second)), waits_for=TOTAL)
    assert losses(train(tmp_path / "run", options, num_processes=6)) == undisturbed()  # each layer is with three


def test_tied_weights_keep_their_bits_where_only_some_owners_keep_sums(tmp_path: Path) -> None:
    expected = undisturbed(GPT)
    options = replace(GPT, kills=((1, 4, "last"), (3, 5, "backward")), waits_for=TOTAL)
    assert losses(train(tmp_path / "killed", options, num_processes=6)) == expected
