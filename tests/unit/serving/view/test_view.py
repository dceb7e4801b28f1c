"""The terminal's view of a deployment: what it says, and where it falls back to plain lines."""

from __future__ import annotations

import io
import socket
import sys
from dataclasses import replace
from typing import Any

import pytest

from multiworld.serving.errors import DeploymentError
from multiworld.serving.page import Recorder
from multiworld.serving.page.series import Point, Rates
from multiworld.serving.page.slots import Slots
from multiworld.serving.page.snapshot import Shown, observe, snapshot
from multiworld.serving.page.stories import Story
from multiworld.serving.view import LiveView, PlainView, choose_view, follow, watch
from multiworld.serving.view import view as view_module
from multiworld.serving.view.words import rate, seconds, sparkline
from tests.unit.serving.page.test_page import Scripted, event, known, status_of


def shown_of(status: dict[str, Any]) -> Shown:
    rates, slots = Rates(), Slots()
    observe(rates, slots, known(status), 0.0)
    return snapshot(known(status), rates, slots, 0.0)


def story(**fields: Any) -> Story:
    told = Story(at=1.0, kind="ReplicaLost", category="fault", tone="bad", text="left-1 is lost", about="left")
    return replace(told, **fields)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_numbers_are_short() -> None:
    assert [rate(None), rate(3.14159), rate(12345.6)] == ["–", "3.1/s", "12,346/s"]
    assert [seconds(None), seconds(0.00123), seconds(0.25), seconds(2.5)] == ["–", "1.2 ms", "250 ms", "2.50 s"]
    assert sparkline([0.0, None, 4.0, 8.0]) == "▁ ▅█"
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert sparkline([]) == ""


def test_without_a_terminal_or_rich_there_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(choose_view(io.StringIO()), PlainView)
    monkeypatch.setattr(view_module, "find_spec", lambda _: None)
    assert isinstance(choose_view(Terminal()), PlainView)


def test_plain_lines_come_when_something_changes_and_every_ten_seconds() -> None:
    out, now = io.StringIO(), [0.0]
    view = PlainView(out, clock_s=lambda: now[0])
    status = status_of()
    for second in range(13):
        now[0] = float(second)
        view.update(shown_of(status), [])
    assert len(out.getvalue().splitlines()) == 2
    status["missing"] = "stage 'left' has no replica"
    view.update(shown_of(status), [])
    view.note(story())
    view.note(story(category="world", text="a world opened"))
    lines = out.getvalue().splitlines()
    assert "left 1/1" in lines[0]
    assert lines[2].endswith("not ready: stage 'left' has no replica")
    assert lines[3].endswith("▲ left-1 is lost")
    assert len(lines) == 4


def test_a_terminal_is_redrawn_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    view = choose_view(out)
    assert isinstance(view, LiveView)
    status = status_of(replicas={"embed": 1, "left": 40, "right": 2, "join": 1})
    view.update(shown_of(status), [Point(at=1.0, rate=1.0, p99_s=None)])
    view.note(story(text="[bold]left-1[/bold] is lost"))
    view.close()
    view.close()
    text = out.getvalue()
    assert "40/40" in text
    assert "more" in text, "forty replicas do not fit"
    assert "[bold]left-1[/bold] is lost" in text, "names are no markup"


async def test_a_view_follows_a_deployment_to_its_end() -> None:
    source, out = Scripted(), io.StringIO()
    source.happened = [event("HostLost", number=1, at=1.0, host="far")]
    recorder = Recorder(source)
    async with recorder:
        view = PlainView(out)
        recorder.closed = True
        await follow(recorder, view)
        assert out.getvalue() == ""
        recorder.closed = False

        class Once(PlainView):
            def update(self, shown: Any, points: Any) -> None:
                super().update(shown, points)
                recorder.closed = True

        await follow(recorder, Once(out))
    assert "host far is lost" in out.getvalue()
    assert "embed 1/1" in out.getvalue()


def test_a_terminal_that_cannot_be_redrawn_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(choose_view(Terminal()), PlainView)


def test_a_controller_that_does_not_answer_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["multiworld.serving.view.follow"], "SOURCE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(DeploymentError, match="does not answer"):
        watch(server.getsockname(), "token", io.StringIO())
