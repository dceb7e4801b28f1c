"""Tables and pictures of replayed failures say what was replayed."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import pytest

from multiworld.training.simulating.compared import Row, rows
from multiworld.training.view.simulated import published_json, published_text, replayed_text
from multiworld.training.view.simulated_picture import Panel, simulated_picture
from multiworld.training.view.words import columns, counted

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def some() -> list[Row]:
    return list(rows(["10 min", "GCP"], ["BERT-large", "GPT-3 6.7b"]))


def test_the_table_has_a_row_for_each_trace_and_model(some: list[Row]) -> None:
    lines = published_text(some).splitlines()
    row = next(line for line in lines if line.startswith("10 min  GPT-3 6.7b"))
    assert row.split()[4:8] == ["0.255", "-", "3.546", "3.428"]
    assert any(line.startswith("GCP     BERT-large") for line in lines)
    assert "multiworld beside Oobleck here: 4 rows, behind in none, least +1.011 %" in lines
    printed = "multiworld beside Oobleck as printed"
    assert f"{printed}, both by those rules: 4 rows, behind in none, least +0.669 %" in lines
    assert f"{printed}, each by its own rules: 4 rows, behind in none, least +0.661 %" in lines
    assert "the same, if the whole unfinished step was done again: 4 rows, behind in 2, least -3.352 %" in lines
    assert max(map(len, lines)) <= 120


def test_json_has_the_published_and_the_replayed_figures(some: list[Row]) -> None:
    found = json.loads(json.dumps(published_json(some)))
    assert [(each["trace"], each["model"]) for each in found] == [(row.trace.name, row.model.name) for row in some]
    assert found[1]["published"] == {"oobleck": 3.5461, "varuna": 0.2551, "bamboo": 0.0}
    assert found[0]["multiworld"]["samples_per_s"] == some[0].ours.samples_per_s
    times = found[0]["oobleck"]
    parts = sum(times[name] for name in ("good_s", "redone_s", "paused_s", "stopped_s"))
    assert parts == pytest.approx(times["wall_s"])


def test_the_picture_has_a_curve_for_each_system_and_a_line_for_each_mean(some: list[Row]) -> None:
    panels = [
        Panel(title=f"<{row.trace.name}>", found=[row.ours, row.oobleck], means=[("a & b", 100.0)]) for row in some
    ]
    root = ET.fromstring(simulated_picture(panels))
    assert len([each for each in root.iter(f"{SVG}polyline") if each.get("class") in ("s0", "s1")]) == 8
    assert len([each for each in root.iter(f"{SVG}line") if each.get("stroke-dasharray")]) == 4
    assert "<GCP>" in [each.text for each in root.iter(f"{SVG}text")]
    width, height = (float(root.get(name) or 0) for name in ("width", "height"))
    for each in root.iter(f"{SVG}polyline"):
        for point in (each.get("points") or "").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= height


def test_systems_on_one_trace_are_compared_with_the_best(some: list[Row]) -> None:
    text = replayed_text(some[0].trace, [some[0].ours, some[0].oobleck])
    assert text.splitlines()[0] == "10 min: 30 nodes, 15 losses, 0 joins in 2.5 h"
    assert "100.0 %" in text
    assert "99.0 %" in text


def test_columns_are_as_wide_as_they_must_be() -> None:
    assert columns([("a", "b"), ("long", "1")], left=1) == "a     b\nlong  1"
    assert [counted(2, "loss"), counted(1, "loss"), counted(2, "micro-batch")] == [
        "2 losses",
        "1 loss",
        "2 micro-batches",
    ]
