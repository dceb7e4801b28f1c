"""Figures beside torchrun, Ray Serve and Gloo are those of the entry of RESULTS.md that the page names."""

from __future__ import annotations

import pytest

from tests.examples.test_docs import ROOT

RESULTS = (ROOT / "benchmarks/RESULTS.md").read_text()
PAGES = ("README.md", "docs/index.md")

TORCHRUN, RAY, GLOO = "2026-11-24 17:56", "2026-11-26 13:33", "2026-11-22 11:17"
FIGURES = [
    (TORCHRUN, "worker killed, worlds", "0.058 s", "2.74 s", "torchrun: healthy workers that were started again: 15"),
    (TORCHRUN, "worker stopped, worlds", "2.34 s", "torchrun: 5 of 5 did not recover within 20 s"),
    (TORCHRUN, "node of two killed, 1:2, worlds", "0.080 s", "torchrun: 5 of 5 did not recover within 20 s"),
    (RAY, "100 kills of one of two: p99 in the second after", "190 ms", "10,034 ms"),
    (RAY, "100 kills of one of two: until replaced and at full throughput", "0.642 s", "32.6 s"),
    (RAY, "one of two stopped: lost", "0", "14", "requests 4,396"),
    (GLOO, "SIGSTOP, operations pending, tcp", "2,062 ms", "raw Gloo: 60 of 60 receives still pending"),
]


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure[1])
def test_the_entry_has_the_figure(figure: tuple[str, ...]) -> None:
    moment, measurement, *values = figure
    entry = RESULTS[RESULTS.index(f"\n## {moment} UTC\n") + 1 :]
    lines = entry[: entry.index("\n## ")].splitlines()
    (row,) = (line for line in lines if line.startswith("|") and line.split("|")[1].strip() == measurement)
    assert [value for value in values if value not in row] == []


def test_the_pages_show_the_same_figures_and_name_their_entries() -> None:
    tables = [rows(page) for page in PAGES]
    assert tables[0] == tables[1]
    assert len(tables[0]) == len(FIGURES)
    for row, (moment, _, ours, *_) in zip(tables[0], FIGURES, strict=True):
        shown = "at most 2.06 s" if moment == GLOO else ours
        assert row.rstrip(" |").rpartition("| ")[2].startswith(shown), row


def rows(page: str) -> list[str]:
    text = (ROOT / page).read_text()
    table = text[text.index("| instead of |") :]
    return table[: table.index("\n\n")].splitlines()[2:]
