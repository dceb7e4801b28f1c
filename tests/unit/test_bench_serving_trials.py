"""Rounds of several sides become lines: medians, ratios pair by pair, and what must not happen."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.serving.sides import OURS, peers
from benchmarks.serving.trials import Trials
from benchmarks.side import Side, SideFailed
from multiworld.bench.report import Bound

PEER = "peer"


class Played(Side):
    """Gives the figures that were written for it, one round after the other."""

    def __init__(self, name: str, rounds: list[dict[str, float] | None]) -> None:
        super().__init__(name=name, command=())
        object.__setattr__(self, "rounds", iter(rounds))

    def run(self, scenario: str, options: Any, timeout_s: float) -> dict[str, float]:
        figures = next(self.rounds)  # type: ignore[attr-defined]  # set above, on a frozen class
        if figures is None:
            raise SideFailed("no figures")
        return dict(figures)


def played(ours: list[dict[str, float] | None], theirs: list[dict[str, float] | None] | None = None) -> Trials:
    sides: list[Side] = [Played(OURS.name, ours)]
    if theirs is not None:
        sides.append(Played(PEER, theirs))
    trials = Trials("case", "any", sides, peer=PEER, timeout_s=1.0)
    trials.run({}, len(ours))
    return trials


def test_figures_stand_beside_the_peers_of_the_same_round() -> None:
    trials = played([{"rate": 80.0}, {"rate": 100.0}, {"rate": 90.0}], [{"rate": 10.0}, {"rate": 20.0}, {"rate": 9.0}])
    line = trials.line("throughput", "rate", "/s", Bound.ratio_at_least(8.0))
    assert (line.value, line.reference, line.ratio) == (90.0, 10.0, 8.0)
    assert line.holds is True


def test_a_ratio_is_not_judged_without_a_peer() -> None:
    line = played([{"rate": 80.0}]).line("throughput", "rate", "/s", Bound.ratio_at_least(8.0))
    assert line.value == 80.0
    assert line.holds is None
    assert "not judged" in line.note


def test_a_round_in_which_the_peer_answered_nothing_has_no_figure_of_it() -> None:
    trials = played([{"p99_s": 1.0}, {"p99_s": 2.0}], [{"p99_s": math.nan}, {"p99_s": 8.0}])
    line = trials.line("p99", "p99_s", "s", Bound.ratio_at_most(0.5))
    assert (line.reference, line.ratio) == (8.0, 0.25)


def test_a_value_is_judged_without_a_peer() -> None:
    line = played([{"took_s": 2.0}, {"took_s": 4.0}]).line("took", "took_s", "ms", Bound.at_most(3000.0), scale=1e3)
    assert line.value == 3000.0
    assert line.holds is True
    assert line.details == {"best": 2000.0, "worst": 4000.0}


def test_what_must_not_happen_is_summed_over_all_rounds() -> None:
    trials = played([{"lost": 0, "requests": 5}, {"lost": 2, "requests": 5}], [{"lost": 7, "requests": 5}, None])
    lost, failed = trials.counts(("lost",))
    assert (lost.value, lost.reference, lost.holds) == (2, 7, False)
    assert lost.details == {"requests": 10}
    assert (failed.value, failed.reference, failed.holds) == (0, 1, True)


def test_a_round_of_ours_that_fails_is_a_failure_and_no_figure() -> None:
    trials = played([None], [{"lost": 0, "rate": 1.0}])
    assert trials.line("throughput", "rate", "/s").value is None
    assert trials.counts(("lost",))[-1].holds is False


@pytest.mark.parametrize("interpreter", [None, ""])
def test_without_an_interpreter_there_is_no_peer(interpreter: str | None) -> None:
    assert peers(interpreter) == []


def test_the_tuned_peer_comes_first() -> None:
    tuned, plain = peers("/somewhere/python")
    assert tuned.environment["RAY_SERVE_TUNED"] == "1"
    assert "RAY_SERVE_TUNED" not in plain.environment
    assert tuned.command == plain.command
