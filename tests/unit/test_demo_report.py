"""A run holds only if every promise of the main job held."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from multiworld.demo.display import PlainDisplay, ReplicaRow, Status, block, choose_display
from multiworld.demo.report import FaultReport, Report, Throughput
from multiworld.serving.view.words import sparkline

FAULT = FaultReport(
    name="SIGSTOP of b-2",
    detection_s=2.1,
    detection_limit_s=3.0,
    full_strength_s=2.4,
    errors={"a-1": "PeerStoppedError", "c-1": "PeerStoppedError"},
    must_be_fenced=True,
    fenced_by="SIGKILL",
)
REPORT = Report(
    seed=0,
    backend="auto",
    seconds=18.0,
    images_sent=1600,
    images_answered=1600,
    requests_sent=100,
    requests_answered=100,
    requests_lost=0,
    requests_duplicated=0,
    requests_replayed=5,
    requests_replayed_by_front=0,
    second_answers_discarded=3,
    accuracy=0.99,
    accuracy_single_process=0.99,
    predictions_different=0,
    max_logit_difference=0.0,
    faults=(FAULT,),
    faults_planned=1,
    worlds_broken_without_reason=(),
    throughput=Throughput(before=6000.0, during=3000.0, after=None),
)


def test_a_perfect_run_holds() -> None:
    assert REPORT.holds


def test_a_fault_that_somebody_else_caused_must_only_be_mended() -> None:
    strange = replace(FAULT, name="loss of b-1", detection_s=9.0, detection_limit_s=None, must_be_fenced=False)
    report = replace(REPORT, faults=(strange, FAULT))
    assert report.holds
    names = [row.name for row in report.rows()]
    assert "loss of b-1: full strength after" in names
    assert "loss of b-1: detected after" not in names
    assert not replace(report, faults=(replace(strange, full_strength_s=None), FAULT)).holds
    assert not replace(report, faults=(strange,)).holds, "the planned one is missing"


@pytest.mark.parametrize(
    "change",
    [
        {"images_answered": 1584},
        {"requests_lost": 1},
        {"requests_duplicated": 1},
        {"accuracy": 0.98},
        {"predictions_different": 1},
        {"faults": ()},
        {"worlds_broken_without_reason": ("a-1: world gateway-1 → a-1: PeerDiedError",)},
        {"error": "first answers: not within 30 s"},
        {"images_sent": 0, "images_answered": 0},
        {"faults": (replace(FAULT, detection_s=None),)},
        {"faults": (replace(FAULT, detection_s=3.1),)},
        {"faults": (replace(FAULT, full_strength_s=None),)},
        {"faults": (replace(FAULT, fenced_by=""),)},
    ],
)
def test_one_broken_promise_is_enough_to_fail(change: dict[str, object]) -> None:
    assert not replace(REPORT, **change).holds  # type: ignore[arg-type]


def test_report_is_json_with_its_verdict() -> None:
    written = json.loads(json.dumps(REPORT.as_json()))
    assert written["holds"] is True
    assert written["faults"][0]["detection_s"] == 2.1
    assert written["throughput"]["after"] is None


def test_table_shows_each_promise_and_its_verdict() -> None:
    stream = io.StringIO()
    display = choose_display(stream)
    assert isinstance(display, PlainDisplay)
    display.finish(replace(REPORT, requests_lost=1))
    text = stream.getvalue()
    assert "lost" in text
    assert "1  FAILED" in text
    assert "did NOT hold: lost" in text
    assert "2.100 s (limit 3 s) as PeerStoppedError  ok" in text


def test_plain_display_prints_a_status_line_a_second_and_every_note() -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream)
    for tick in range(9):
        display.update(
            Status(
                elapsed_s=tick / 4,
                throughput=[100.0],
                num_answered=tick,
                num_in_flight=1,
                worlds={("a-1", "b-1"): "broken", ("a-1", "b-2"): "active"},
                replicas=[],
            )
        )
    display.note(9.0, "killed", alarming=True)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 4
    assert lines[0].endswith("a-1 → b-1 broken")
    assert lines[-1].endswith("! killed")


STATUS = Status(
    elapsed_s=3.0,
    throughput=[10.0, 20.0],
    num_answered=30,
    num_in_flight=16,
    worlds={("gateway-1", "a-1"): "active", ("a-1", "b-1"): "broken"},
    replicas=[
        ReplicaRow(name="b-1", pid=None, state="starting", num_images=0),
        ReplicaRow(name="a-1", pid=7, state="ready", num_images=1234),
    ],
)


def test_the_block_of_the_live_display_has_a_line_for_each_replica_and_world() -> None:
    console = Console(width=100, file=io.StringIO())
    console.print(block(STATUS, width=100))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert "16 in flight" in lines[0]
    assert lines[1].startswith("▅█")
    assert lines[3].split() == ["a-1", "7", "ready", "1,234", "gateway-1", "→", "a-1", "active"]
    assert lines[4].split() == ["b-1", "starting", "0", "a-1", "→", "b-1", "broken"]


def test_sparkline_scales_to_the_largest_value() -> None:
    assert sparkline([0, 1, 2, 8]) == "▁▂▃█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""
