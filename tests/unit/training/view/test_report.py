"""The report: as text, as JSON and as a picture."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from multiworld.observe.curve import Curve
from multiworld.training.events import CopyLoaded, CopySaved, StepCommitted
from multiworld.training.view.picture import picture
from multiworld.training.view.report import report_json, reports_of
from multiworld.training.view.report_text import report_text
from multiworld.training.view.svg import nice_ticks
from multiworld.training.view.words import duration, number, size
from multiworld.world.launcher.pipelines import LOST_RANK, PipelineRanks

from .runs import Run

SVG = "{http://www.w3.org/2000/svg}"


def eventful() -> Run:
    run = Run(num_members=4, total=120).steps(20).lose(2).steps(10).join(2).steps(20)
    run.slow = {1: 2.0}
    run.steps(25)
    run.slow = {}
    return run.lose(0).steps(41).end()


def clock(at: float) -> str:
    return f"{at - 1_000_000:.1f}"


def test_the_text_says_what_happened() -> None:
    (report,) = reports_of(eventful().in_order())
    text = report_text(report, clock)

    assert "training gpt: 119 of 120 steps committed" in text
    assert "2 failures, 4 micro-batches computed again" in text
    assert "step 20, rank 2 was lost" in text
    assert "rank 2: PeerDiedError: its socket closed" in text
    assert "detect 5 ms, agree 30 ms, form 60 ms, redo 40 ms" in text
    assert "rank 2 took 8 MB of state from 2 peers in 500 ms" in text
    assert "rank 1 was 2x slower than the middle rank in backward, in 25 steps from 52 to 76" in text
    assert "rank 0    m001         pid 101      steps 0 to 76          lost: PeerDiedError" in text


def test_the_text_says_from_where_the_state_came() -> None:
    run = Run(num_members=2, total=60).steps(20)
    run.say(0, CopySaved, step=20, size_bytes=100, copies=1, stall_s=0.001, took_s=0.1)
    run.say(1, CopyLoaded, step=20, source="copy", holder=0, size_bytes=100, took_s=0.5)
    (report,) = reports_of(run.steps(40).end().in_order())
    text = report_text(report, clock)

    assert "rank 1  copy loaded: step 20, source copy, holder 0, size_bytes 100, took_s 0.5" in text
    assert "copy saved" not in text  # there is one for each interval and process


def test_the_members_that_were_lost_and_those_that_ended_are_told_apart() -> None:
    (report,) = reports_of(eventful().in_order())

    assert [(each.rank, each.end) for each in report.members] == [
        (0, "lost: PeerDiedError"),
        (1, "done"),
        (2, "lost: PeerDiedError"),
        (2, "done"),
        (3, "done"),
    ]


def test_the_json_has_the_timelines_and_is_json() -> None:
    run = eventful()
    run.events["m002"] = [
        type(e)(**{**vars(e), "values": {"loss": math.nan}}) if isinstance(e, StepCommitted) else e
        for e in run.events["m002"]
    ]
    (report,) = reports_of(run.in_order())
    said = json.loads(json.dumps(report_json(report), allow_nan=False))

    assert said["account"]["goodput"] == pytest.approx(report.account.goodput)
    recovery = said["recoveries"][0]
    assert [phase["name"] for phase in recovery["phases"]] == ["detect", "agree", "form", "redo"]
    assert recovery["took_s"] == pytest.approx(0.185, abs=0.001)
    assert recovery["tracks"][0]["spans"][2]["took_s"] == pytest.approx(0.06, abs=1e-6)
    assert said["last_values"] == {"loss": None}


def test_the_picture_has_the_curve_the_marks_and_a_row_for_each_member() -> None:
    (report,) = reports_of(eventful().in_order())
    root = ET.fromstring(picture(report, clock))
    kinds = [each.get("class") for each in root.iter()]

    assert kinds.count("loss") == 1
    assert kinds.count("failure") == 2
    assert kinds.count("join") == 1
    assert kinds.count("detect") == 3 + 3 + 1  # the survivors of each failure, and the legend
    assert "prefers-color-scheme:dark" in next(root.iter(f"{SVG}style")).text  # type: ignore[operator]  # it has text
    height = float(str(root.get("height")))
    assert all(0 <= float(str(each.get("y"))) <= height for each in root.iter(f"{SVG}text"))


def test_a_run_in_which_nothing_was_committed_can_be_shown() -> None:
    (report,) = reports_of(Run().in_order())

    assert "no step was committed" in report_text(report, clock)
    assert picture(report, clock).startswith("<svg")


def test_names_are_escaped_in_the_picture() -> None:
    (report,) = reports_of(Run(job="<b>&").steps(3).lose(1, cause='<"&').in_order())

    ET.fromstring(picture(report, clock))


def test_many_failures_and_members_stay_readable() -> None:
    run = Run(num_members=40, total=1000)
    for rank in range(30):
        run.steps(3).lose(rank)
    (report,) = reports_of(run.in_order())
    shown = picture(report, clock)

    assert "and 10 more<" in shown
    assert "more members" in shown
    assert len(shown) < 200_000


def test_no_slow_rank_is_named_where_none_is() -> None:
    (report,) = reports_of(Run(slow={1: 1.2}).steps(100).in_order())

    assert report.slow_ranks == ()


def test_a_long_curve_has_few_points_and_its_last_value() -> None:
    curve = Curve(100)
    for step in range(10_000):
        curve.add(step, float(step))

    assert len(curve.points) <= 101
    assert curve.points[-1] == (9999, 9999.0)
    assert all(abs(value - step) <= 256 for step, value in curve.points)


def test_a_step_that_comes_again_cuts_the_curve() -> None:
    curve = Curve()
    for step in (0, 1, 2, 3, 2):
        curve.add(step, 1.0 * step)
    curve.add(3, math.nan)

    assert [step for step, _ in curve.points] == [0, 1, 2]


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.2, 17.0), (5.0, 5.0), (0.0, 0.0), (1e-9, 2e-9), (0, 1e9)])
def test_ticks_enclose_what_is_drawn(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)

    assert ticks[0] <= low
    assert ticks[-1] >= high
    assert 2 <= len(ticks) <= 11


def test_numbers_are_short() -> None:
    assert [number(each) for each in (0.0, 0.012344, 2.3119, 1234.5, 1e-7, 3e12, math.nan)] == [
        "0",
        "0.01234",
        "2.312",
        "1,234",
        "1.000e-07",
        "3.000e+12",
        "nan",
    ]
    assert [duration(each) for each in (0.0123, 3.456, 600.0, 7200.0)] == ["12 ms", "3.46 s", "10 min", "2.0 h"]
    assert [size(each) for each in (512, 8e6, 3.21e9, 5e13)] == ["512 B", "8 MB", "3.21 GB", "50 TB"]


def piped() -> Run:
    return Run(num_members=5, total=60, has_pipelines=True).steps(20).lose(2).steps(10).join(2).steps(20).end()


def test_the_text_says_which_pipelines_there_were() -> None:
    (report,) = reports_of(piped().in_order())
    text = report_text(report, clock)

    assert "processes on average of at most 5" in text
    assert "replica" not in text
    assert "  from step 0, generation 1: 2 pipelines of 2 and 3, 3 layers moved\n" in text
    assert (
        "    rank 0 layers 0 to 1, rank 1 layers 2 to 4, rank 2 layers 5 to 7: 8 micro-batches, 25 % bubbles\n" in text
    )
    assert "  from step 20, generation 2: 2 pipelines of 2, 3 layers moved\n" in text
    assert "generation 2: 4 processes" in text
    assert "rank 4 took 1 kB of state from 1 peer" in text
    assert "pipelines changed:" not in text  # they are no other events


def test_what_is_moved_is_a_phase_of_its_own_and_no_good_time() -> None:
    (report,) = reports_of(piped().in_order())

    assert [each.name for each in report.recoveries[0].phases] == ["detect", "agree", "form", "move", "redo"]
    without = Run(num_members=5, total=60).steps(20).lose(2).steps(10).join(2).steps(20).end()
    (other,) = reports_of(without.in_order())
    assert report.account.losses["failures"] == pytest.approx(other.account.losses["failures"] + 0.02, abs=1e-6)


def test_the_picture_has_the_layers_of_each_rank_over_the_steps() -> None:
    (report,) = reports_of(piped().in_order())
    root = ET.fromstring(picture(report, clock))
    boxes = [each for each in root.iter(f"{SVG}rect") if each.get("class") in ("p0", "p1")]
    titles = [str(each[0].text) for each in boxes]

    assert len(boxes) == 5 + 4 + 5
    assert titles[0] == "rank 0: stage 0 of pipeline 0, layers 0-1, 8 micro-batches"
    assert titles[-1] == "rank 4: stage 1 of pipeline 1, layers 4-7, 8 micro-batches"
    assert "replicas" not in [each.text for each in root.iter(f"{SVG}text")]


def rerouted() -> Run:
    """Rank 3 is lost, and rank 1 computes what that would have computed."""
    first = PipelineRanks(ranks=(0, 1), starts=(0, 4), num_micro_batches=8, busy=(0.75, 0.75))
    run = Run(num_members=4, total=40, has_pipelines=True)
    run.pipelines = (first, replace(first, ranks=(2, 3)))
    run.steps(20)
    run.pipelines = (
        replace(first, num_micro_batches=9, busy=(0.5, 1.0), computed=(9, 16)),
        replace(first, ranks=(2, LOST_RANK), num_micro_batches=7, busy=(0.4, 0.0), computed=(7, 0)),
    )
    return run.lose(3).steps(19).end()


def test_the_text_says_who_computes_for_a_lost_rank() -> None:
    (report,) = reports_of(rerouted().in_order())
    text = report_text(report, clock)

    assert "  from step 20, generation 2: 2 pipelines of 1 and 2, 3 layers moved\n" in text
    assert "    rank 0 layers 0 to 3, rank 1 layers 4 to 7 (computes 16): 9 micro-batches, 25 % bubbles\n" in text
    assert "    rank 2 layers 0 to 3, others layers 4 to 7: 7 micro-batches, 60 % bubbles\n" in text


def test_the_picture_has_no_row_for_a_place_whose_rank_is_lost() -> None:
    (report,) = reports_of(rerouted().in_order())
    root = ET.fromstring(picture(report, clock))
    titles = [str(each[0].text) for each in root.iter(f"{SVG}rect") if each.get("class") in ("p0", "p1")]

    assert len(titles) == 4 + 3
    assert "rank 1: stage 1 of pipeline 0, layers 4-7, 16 micro-batches" in titles
    assert not any("rank -1" in str(each.text) for each in root.iter())


def test_pipelines_of_many_ranks_stay_readable() -> None:
    run = Run(num_members=200, has_pipelines=True).steps(20).end()
    (report,) = reports_of(run.in_order())
    root = ET.fromstring(picture(report, clock))

    assert "and 168 more ranks" in [each.text for each in root.iter(f"{SVG}text")]
