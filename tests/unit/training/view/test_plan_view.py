"""A plan's tables and picture show every template and every count of nodes."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import pytest

from multiworld.training.planning.nodes import Node
from multiworld.training.planning.templates import make_templates
from multiworld.training.planning.timelines import TemplateTimeline
from multiworld.training.planning.timing import Timing
from multiworld.training.planning.uniform import uniform_profile
from multiworld.training.view.plan_picture import MAX_TEMPLATES, plan_picture
from multiworld.training.view.plan_view import PipelinesFor, PlanView, plan_json, plan_text, runs

SVG = "{http://www.w3.org/2000/svg}"


def view(num_nodes: int = 6, num_layers: int = 12, memory: int | None = 3000) -> PlanView:
    profile = uniform_profile(num_layers, layer_bytes=100, activation_bytes=1)
    node = Node(memory_bytes=memory)
    templates = make_templates(profile, node, num_nodes=num_nodes, tolerate=1)
    return PlanView(
        profile=profile,
        node=node,
        num_nodes=num_nodes,
        tolerate=1,
        num_micro_batches=24,
        smallest=templates.smallest,
        timelines=[TemplateTimeline(Timing.of(profile, [node] * each.num_nodes, each)) for each in templates],
        pipelines=[
            PipelinesFor(num_nodes=2, pipelines=((2, 24),), iteration_s=4.0),
            PipelinesFor(num_nodes=3, note="no pipelines use 3 nodes"),
            PipelinesFor(num_nodes=4, pipelines=((2, 12), (2, 12)), iteration_s=2.0),
            PipelinesFor(num_nodes=6, pipelines=((3, 14), (2, 10)), iteration_s=1.6, idle=1),
        ],
    )


def test_the_tables_have_all_templates_and_all_counts() -> None:
    lines = plan_text(view()).splitlines()
    assert lines[0] == (
        "uniform: 12 equal layers, 4.8 kB of state, 8.64 s of work in a step of 24 samples (24 micro-batches of 1)"
    )
    assert lines[1].endswith("2 nodes hold the model; 4 nodes survive the loss of any 1")
    assert lines[lines.index("templates") + 2].split() == ["2", "8", "1.62", "s", "11.1", "%", "1f1b", "2", "6", "6"]
    table = lines[lines.index("pipelines") + 2 :]
    assert table[0].split() == ["2", "4", "s", "6", "120.0", "%", "0", "losses", "2", "(24)"]
    assert table[1].endswith("no pipelines use 3 nodes")
    assert table[2].endswith("2 x 2 (12)")
    assert table[3].endswith("1 loss  2 (10), 3 (14), 1 idle")


def test_json_has_the_stages_of_each_template() -> None:
    found = json.loads(json.dumps(plan_json(view())))
    assert [each["num_nodes"] for each in found["templates"]] == [2, 3, 4]
    stages = found["templates"][1]["stages"]
    assert [(each["first"], each["end"]) for each in stages] == [(0, 4), (4, 8), (8, 12)]
    assert found["pipelines"][1]["note"] == "no pipelines use 3 nodes"
    assert found["pipelines"][2]["samples_per_s"] == 12.0
    assert found["pipelines"][2]["survives"] == 1


def test_the_picture_shows_who_has_which_layers_and_when_stages_compute() -> None:
    shown = view()
    root = ET.fromstring(plan_picture(shown))
    classes = [each.get("class") for each in root.iter(f"{SVG}rect")]
    operations = sum(len(each.operations) for each in shown.timelines)
    assert classes.count("forward") == classes.count("backward") == operations / 2 + 1  # and one in the key
    titles = {each.text for each in root.iter(f"{SVG}title")}
    assert {"node 0: layers 0-3", "node 2: layers 8-11", "stage 1: backward of micro-batch 7"} <= titles
    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert "12 samples/s, 120 %" in texts
    assert "15 samples/s, 100 %, 1 idle" in texts
    assert "no pipelines use 3 nodes" in texts


def test_what_does_not_fit_the_picture_is_said() -> None:
    shown = view(num_nodes=20, num_layers=40, memory=None)
    texts = [each.text for each in ET.fromstring(plan_picture(shown)).iter(f"{SVG}text")]
    left_out = len(shown.timelines) - MAX_TEMPLATES
    assert f"{left_out} larger templates not drawn: the table has them" in texts


@pytest.mark.parametrize(
    ("counts", "shown"), [([13, 13, 13, 12], "3x13 12"), ([6, 6], "6 6"), ([1, 2, 3], "1 2 3"), ([5] * 4, "4x5")]
)
def test_equal_stages_are_counted(counts: list[int], shown: str) -> None:
    assert runs(counts) == shown
