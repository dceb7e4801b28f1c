"""Slices in turn, and which channels a benchmark measures."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from multiworld.bench import run
from multiworld.bench.options import Options
from multiworld.bench.report import Line
from multiworld.bench.samples import alternate, lane_names


def test_each_sample_follows_one_of_the_reference_and_the_first_round_does_not_count() -> None:
    taken: list[str] = []

    def sample(lane: str) -> int:
        taken.append(lane)
        return len(taken)

    assert alternate(sample, ["a", "b"], 2) == {"a": [(6, 5), (10, 9)], "b": [(8, 7), (12, 11)]}
    assert taken == ["raw", "a", "raw", "b"] * 3


def test_any_lane_may_be_the_reference() -> None:
    assert alternate(len, ["ours"], 1, reference="memcpy") == {"ours": [(4, 6)]}


def test_lanes_are_named_by_backend_and_api() -> None:
    assert lane_names(["tcp", "shm"]) == ["tcp, asyncio", "tcp, blocking", "shm, asyncio", "shm, blocking"]


def test_quick_runs_take_one_pair_per_round() -> None:
    assert (Options(rounds=2).num_pairs, Options(rounds=2, quick=True).num_pairs) == (6, 2)


@pytest.mark.parametrize(("asked", "measured"), [((), ("shm",)), (("tcp",), ("tcp",))])
def test_a_benchmark_measures_its_own_channels_unless_others_are_asked_for(
    asked: tuple[str, ...], measured: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Options] = []

    def measure(options: Options, note: Callable[[str], None]) -> list[Line]:
        seen.append(options)
        note("here")
        return []

    module = ModuleType("multiworld.bench.made_up")
    module.__dict__.update(ABOUT="A test.", BACKENDS=("shm",), measure=measure)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    notes: list[str] = []
    run.run(["made_up"], Options(rounds=3, backends=asked), notes.append)
    assert seen == [Options(rounds=3, backends=measured)]
    assert notes == ["made_up: here"]
