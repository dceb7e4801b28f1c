"""Bounds, lines, tables and records of the benchmark."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from multiworld.bench.report import Bound, Line, Machine, Report, Section, describe_machine
from multiworld.bench.samples import Pairs
from multiworld.bench.table import append_record, format_figure, report_text, section_text

MACHINE = Machine(
    date="2024-05-06 07:08 UTC",
    cpu="a processor",
    cores=2,
    memory_gb=16.0,
    kernel="6.1",
    python="3.12.1",
    torch="2.13.0",
    multiworld="0.3.0",
    load_average=(0.5, 0.25, 0.125),
)
FAST = Line.of_pairs("4 MB", "GB/s", Pairs([2.9, 3.0, 3.1], [3.0, 3.0, 3.0]), Bound.ratio_at_least(0.95))
SLOW = Line.of_pairs("400 kB", "GB/s", Pairs([1.0], [2.0]), Bound.ratio_at_least(0.85))
LATE = Line.of_pairs("4 B", "µs", Pairs([150.0], [100.0]), Bound.above_reference_at_most(40), {"p99": 1234.5})
PLAIN = Line(name="threads", unit="", value=3, bound=Bound.at_most(3), note="per world")


def _report(*lines: Line, quick: bool = False) -> Report:
    return Report(
        machine=MACHINE,
        quick=quick,
        sections=[Section(name="p2p", about="Two processes.", took_s=12.4, lines=lines)],
    )


def _squeezed(row: str) -> str:
    return " ".join(row.split())


@pytest.mark.parametrize(
    ("bound", "unit", "text", "gates"),
    [
        (Bound.ratio_at_least(0.95), "GB/s", "≥ 0.95×", True),
        (Bound.ratio_at_most(1), "µs", "≤ 1×", True),
        (Bound.above_reference_at_most(40), "µs", "≤ +40 µs", False),
        (Bound.at_most(20), "ms", "≤ 20 ms", False),
        (Bound.at_most(3), "% of a core", "≤ 3 % of a core", False),
        (Bound.at_most(2), "", "≤ 2", True),
        (Bound.at_most(0.1), "MB", "≤ 0.1 MB", True),
    ],
)
def test_ratios_and_counts_gate_but_never_times(bound: Bound, unit: str, text: str, gates: bool) -> None:
    assert bound.text(unit) == text
    assert bound.gates(unit) is gates


def test_line_compares_the_figure_that_its_bound_is_on() -> None:
    assert (FAST.holds, SLOW.holds, LATE.holds, PLAIN.holds) == (True, False, False, True)
    assert Line(name="x", unit="s", value=1).holds is None


def test_run_fails_on_ratios_only() -> None:
    assert _report(FAST, LATE).passes
    assert _report(FAST, LATE).failures == [LATE]
    assert not _report(SLOW).passes


def test_table_is_aligned_and_leaves_out_columns_that_nothing_fills() -> None:
    text = section_text(_report(FAST, SLOW, LATE, PLAIN).sections[0])
    table = text.splitlines()[4:]
    assert len({len(row) for row in table}) == 1
    assert _squeezed(table[2]) == "| 4 MB | 3 GB/s | 3 GB/s | 1.00 (0.97–1.03) | ≥ 0.95× | ok | |"
    assert "+50 µs, p99 1,234" in table[4]
    assert _squeezed(table[5]) == "| threads | 3 | | | ≤ 3 | ok | per world |"
    bare = section_text(_report(Line(name="x", unit="s", value=1)).sections[0]).splitlines()[4:]
    assert _squeezed(bare[0]) == "| measurement | ours |"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234567.8, "1,234,568 B"),
        (123.4, "123 B"),
        (12.34, "12.3 B"),
        (1.234, "1.23 B"),
        (0.1234, "0.123 B"),
        (2, "2 B"),
        (0.00012345, "1.23e-04 B"),
        (math.nan, "none"),
        (-math.inf, "-inf B"),
    ],
)
def test_figures_have_three_digits(value: float, text: str) -> None:
    assert format_figure(value, "B") == text


def test_last_line_names_what_failed() -> None:
    assert report_text(_report(FAST)).endswith("Every figure is within its bound.\n")
    assert "Outside their bounds: 2 (400 kB; 4 B), of which 1 by" in report_text(_report(SLOW, LATE))


def test_what_could_not_be_measured_is_told_and_fails_nothing() -> None:
    missing = Line.not_measured("over veth", "network namespaces need root")
    report = _report(FAST, missing)
    assert report.passes
    assert missing.holds is None
    rows = section_text(report.sections[0]).splitlines()
    assert "| not measured: network namespaces need root |" in _squeezed(rows[-1])
    assert report_text(report).endswith("Every figure is within its bound. Not measured: 1.\n")
    assert report_text(_report(SLOW, missing)).endswith("which fail --check. Not measured: 1.\n")
    assert report.as_json()["sections"][0]["lines"][1]["value"] is None


def test_json_says_what_holds() -> None:
    [section] = json.loads(json.dumps(_report(FAST, SLOW).as_json()))["sections"]
    assert [line["bound"]["holds"] for line in section["lines"]] == [True, False]
    assert section["lines"][0]["ratio"] == 1.0


def test_records_follow_one_another(tmp_path: Path) -> None:
    path = tmp_path / "RESULTS.md"
    append_record(path, _report(FAST))
    append_record(path, _report(SLOW, quick=True))
    text = path.read_text()
    assert text.startswith("# Results of `multiworld bench`\n")
    assert text.count("# Results") == 1
    assert text.index("## 2024-05-06 07:08 UTC\n") < text.index("## 2024-05-06 07:08 UTC (quick")
    assert "a processor, 2 cores, 16 GB; Linux 6.1; Python 3.12.1" in text


def test_machine_is_described_without_torch() -> None:
    machine = describe_machine()
    assert machine.cores >= 1
    assert machine.torch
    assert machine.kernel in machine.as_text()
