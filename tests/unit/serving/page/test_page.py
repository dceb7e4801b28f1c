"""What the page of a deployment decides: rates, places, stories, and who may read it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields as fields_of
from typing import Any

import pytest

from multiworld.errors import MultiworldError
from multiworld.observe.sites import SiteRule, site_rule
from multiworld.serving.control.fleet.actions import FleetEvent
from multiworld.serving.control.history import EventRecord
from multiworld.serving.control.status import ControllerStatus, ReplicaStatus
from multiworld.serving.member.failure import Failure
from multiworld.serving.page import PageApp, Recorder, stories
from multiworld.serving.page import graph_view as page_graph
from multiworld.serving.page import recorder as recorder_module
from multiworld.serving.page import snapshot as page_snapshot
from multiworld.serving.page.app import PAGE
from multiworld.serving.page.failures import last_failure, trouble
from multiworld.serving.page.recorder import Everything
from multiworld.serving.page.series import Point, Rates, Series
from multiworld.serving.page.slots import FRESH_S, Slots
from multiworld.serving.page.stories import CATEGORIES, Story
from multiworld.wire.messages import from_json, to_json

RHOMBUS = {"embed": ["gateway"], "left": ["embed"], "right": ["embed"], "join": ["left", "right"]}


def event(kind: str, **fields: Any) -> dict[str, Any]:
    """Return an event as a controller tells it; what is not given is like nothing."""
    types = {"float": 0.0, "int": 0, "str": "", "Mapping[str, int | float]": {}}
    (found,) = (each for each in FleetEvent.__subclasses__() if each.__name__ == kind)
    empty = {field.name: types[str(field.type)] for field in fields_of(found)}
    return {"kind": kind, **empty, **fields}


def tell(record: dict[str, Any]) -> Story:
    return stories.tell(from_json(EventRecord, record))


def document(data: Everything) -> str:
    return PAGE.page("multiworld", to_json(data))


def known(status: dict[str, Any]) -> ControllerStatus:
    """Return a status as a controller's answer is read."""
    return from_json(ControllerStatus, status)


def observe(rates: Rates, slots: Slots, status: dict[str, Any], now: float) -> None:
    page_snapshot.observe(rates, slots, known(status), now)


def snapshot(status: dict[str, Any], rates: Rates, slots: Slots, now: float) -> dict[str, Any]:
    """Return what a page is sent."""
    return to_json(page_snapshot.snapshot(known(status), rates, slots, now))


def graph_view(status: dict[str, Any], slots: Slots, failing: Collection[str] = ()) -> dict[str, Any]:
    return to_json(page_graph.graph_view(known(status), slots, failing))


def member_of(stage: str, number: int, **fields: Any) -> dict[str, Any]:
    return {
        "id": f"{stage}-{number}",
        "stage": stage,
        "state": "ready",
        "open": True,
        "pid": 100 + number,
        "host": "a",
        "address": "127.0.0.1",
        "version": 1,
        "age_s": 3.0,
        "awaited": False,
        "retiring": "",
        "queue": 0,
        "stats": {},
        **fields,
    }


def status_of(
    upstream: Mapping[str, Sequence[str]] = RHOMBUS, replicas: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Return the status of a deployment in which all is well."""
    numbers = dict.fromkeys(upstream, 1) if replicas is None else replicas
    members = {stage: [member_of(stage, n + 1) for n in range(numbers[stage])] for stage in upstream}
    members["gateway"] = [member_of("gateway", 1, stats={"open": 0, "answered": 0, "p50_s": 0.004})]
    feeding = {source for sources in upstream.values() for source in sources}
    arrows = [(source, stage) for stage, sources in upstream.items() for source in sources]
    arrows += [(stage, "gateway") for stage in upstream if stage not in feeding]
    return {
        "name": "some",
        "ready": True,
        "missing": "",
        "unready_s": None,
        "epoch": 3,
        "resuming": False,
        "stopping": False,
        "stages": {
            stage: {
                "inputs": list(sources),
                "upstream": list(sources),
                "desired": numbers[stage],
                "open": numbers[stage],
                "min_replicas": 1,
                "max_replicas": 4,
                "version": 1,
                "updating_to": None,
                "waits_for": "",
                "backs_off_s": 0.0,
            }
            for stage, sources in upstream.items()
        },
        "replicas": [member for stage in upstream for member in members[stage]],
        "gateways": members["gateway"],
        "edges": [
            {"from": one["id"], "to": other["id"], "state": "open", "attempts": 0, "error": ""}
            for source, target in arrows
            for one in members[source]
            for other in members[target]
        ],
        "hosts": [{"name": "a", "address": "127.0.0.1", "capacity": 0, "live": True}],
        "num_events": 0,
    }


def failing(status: dict[str, Any], *, answered: int, failed: int) -> dict[str, Any]:
    """Have the stage "right" fail so many requests; what comes before it is as it was."""
    failure = Failure(kind="ValueError at app.py:7", error="ValueError: <bad> row", count=failed, at=1e9, traceback="T")
    for replica in status["replicas"]:
        if replica["id"] == "right-1":
            replica["stats"] = {"done": answered, "failed": failed}
            replica["failure"] = to_json(failure)
    told = Failure(kind="StageFailedError", error="stage 'right' failed", count=failed, at=1e9)
    for gateway in status["gateways"]:
        gateway["stats"] = {"open": 0, "answered": answered, "errors": failed, "failed": failed, "p50_s": 0.004}
        gateway["failure"] = to_json(told)
    return status


# ---- many replicas


def test_many_replicas_are_chips_the_worst_first_and_their_worlds_are_joined() -> None:
    status = status_of({"a": ["gateway"], "b": ["a"]}, replicas={"a": 2, "b": 40})
    status["replicas"][20]["state"] = "draining"
    for edge in status["edges"][:3]:
        edge["state"], edge["error"] = "broken", "cut"
    rates, slots = Rates(), Slots()
    observe(rates, slots, status, 0.0)
    view = graph_view(status, slots, failing={"b-33"})
    assert view["drawings"]["wide"]["height"] < 400
    assert list(view["drawings"]["wide"]["members"])[2:5] == ["b-33", "b-19", "b-1"]
    worlds = {(edge["from"], edge["to"], edge["state"]): edge["count"] for edge in view["edges"]}
    assert worlds["b", "gateway-1", "open"] == 40
    assert sum(worlds.values()) == len(status["edges"])
    assert len(worlds) < 10
    assert view["edges"][-1]["state"] == "broken"


# ---- failures


def test_a_failing_request_is_a_warning_and_many_are_an_alarm() -> None:
    assert trouble(500, 0) is None
    few, many, all_ = trouble(490, 10), trouble(900, 100), trouble(0, 3)
    assert few
    assert many
    assert all_
    assert (few.tone, few.percent) == ("warn", "2.0 %")
    assert (many.tone, many.percent) == ("bad", "10 %")
    assert all_.text == "3 of 3 requests failed in the last minute (100 %)"


def test_errors_of_one_kind_are_counted_over_all_replicas() -> None:
    kinds = [("a-1", "A", 3, 1.0), ("a-2", "B", 5, 2.0), ("a-3", "A", 4, 3.0)]
    members = [
        member_of("a", int(name[2:]), failure=to_json(Failure(kind=kind, error="why", count=count, at=at)))
        for name, kind, count, at in kinds
    ]
    last = last_failure([from_json(ReplicaStatus, each) for each in [*members, member_of("a", 4)]])
    assert last is not None
    assert (last.member, last.kind, last.count) == ("a-3", "A", 7)


def test_a_snapshot_shows_the_failures_of_the_last_minute_and_forgets_older_ones() -> None:
    rates, slots = Rates(), Slots()

    def at(now: float, answered: int, failed: int) -> dict[str, Any]:
        status = failing(status_of(), answered=answered, failed=failed)
        observe(rates, slots, status, now)
        return snapshot(status, rates, slots, now)

    assert at(0.0, 1000, 50)["trouble"] is None  # long ago, for all that is known
    assert at(1.0, 1100, 50)["failure"] is None
    shown = at(2.0, 1196, 54)
    assert shown["trouble"]["text"] == "4 of 200 requests failed in the last minute (2.0 %)"
    assert shown["failure"]["member"] == "right-1"
    assert shown["failure"]["traceback"] == "T"
    assert shown["condition"] == {"tone": "warn", "text": shown["trouble"]["text"]}
    (replica,) = (each for each in shown["replicas"] if each["id"] == "right-1")
    assert (replica["failure"]["error"], replica["failure"]["traceback"]) == ("ValueError: <bad> row", "")
    stages = {stage["name"]: stage["trouble"] for stage in shown["stages"]}
    assert stages["right"]["tone"] == "warn"
    assert stages["left"] is None
    for second in range(3, 70):
        shown = at(float(second), 1196 + second, 54)
    assert shown["trouble"] is None


def test_a_snapshot_says_in_one_sentence_how_the_deployment_stands() -> None:
    def condition(**fields: Any) -> tuple[str, str]:
        shown = snapshot({**status_of(), **fields}, Rates(), Slots(), 0.0)["condition"]
        return shown["tone"], shown["text"]

    assert condition() == ("good", "every stage takes requests")
    assert condition(missing="stage 'left' has no replica") == ("bad", "not ready: stage 'left' has no replica")
    assert condition(resuming=True)[0] == "warn"
    assert condition(stopping=True, missing="all") == ("warn", "the deployment is being stopped")


def test_a_failure_travels_as_json_of_bounded_size() -> None:
    failure = Failure(kind="A", error="e" * 9000, count=2, at=1.0, traceback="t" * 9000 + "end")
    told = from_json(Failure, json.loads(json.dumps(to_json(failure.shortened()))))
    assert len(told.error) < 7000
    assert told.traceback.endswith("end")
    assert len(told.traceback) < 7000


def test_a_snapshot_shows_the_mean_size_of_batches() -> None:
    rates, slots = Rates(), Slots()
    for second in range(3):
        status = status_of()
        status["replicas"][0]["stats"] = {"done": 60 * second, "failed": 0, "calls": 10 * second}
        observe(rates, slots, status, float(second))
    shown = snapshot(status, rates, slots, 2.0)
    assert shown["replicas"][0]["batch"] == 6.0
    assert shown["stages"][0]["batch"] == 6.0
    assert shown["replicas"][1]["batch"] is None


# ---- rates


def test_a_rate_is_how_fast_a_count_grows() -> None:
    rates = Rates()
    for second in range(5):
        rates.observe("a", {"done": 40.0 * second}, float(second))
    assert rates.rate("a", "done") == 40.0
    assert rates.rate("a", "failed") == 0.0
    assert rates.rate("b", "done") is None


def test_the_same_counts_heard_twice_are_one_sample() -> None:
    rates = Rates(window_s=1.0)
    for now, done in [(0.0, 0), (1.0, 10), (1.25, 10), (1.5, 10), (2.0, 20), (2.25, 20)]:
        rates.observe("a", {"done": float(done)}, now)
    assert rates.rate("a", "done") == 10.0


def test_an_idle_process_comes_to_rest() -> None:
    rates = Rates(window_s=2.0)
    for now in (0.0, 1.0, 2.5, 4.0, 5.5, 7.0):
        rates.observe("a", {"done": 10.0 if now else 0.0}, now)
    assert rates.rate("a", "done") == 0.0


def test_counts_that_shrink_are_those_of_another_process() -> None:
    rates = Rates()
    rates.observe("a", {"done": 1000.0}, 0.0)
    rates.observe("a", {"done": 1100.0}, 1.0)
    rates.observe("a", {"done": 3.0}, 2.0)
    assert rates.rate("a", "done") is None
    rates.observe("a", {"done": 53.0}, 3.0)
    assert rates.rate("a", "done") == 50.0
    rates.keep_only([])
    assert rates.rate("a", "done") is None


def test_a_series_keeps_the_last_points() -> None:
    series = Series(max_points=3)
    for second in range(5):
        series.add(Point(at=float(second)))
    assert [each.at for each in series.since(0)] == [2.0, 3.0, 4.0]
    assert [each.at for each in series.since(4)] == [4.0]
    assert series.since(5) == []


# ---- places


def test_a_replacement_takes_the_place_of_whom_it_replaces() -> None:
    slots = Slots()
    slots.arrange({"s": ["s-1", "s-2"]}, {"s": 2}, 0.0)
    slots.arrange({"s": ["s-2"]}, {"s": 2}, 1.0)
    assert [(slot.member, slot.predecessor, slot.missed) for slot in slots.of("s")] == [
        ("", "s-1", True),
        ("s-2", "", False),
    ]
    slots.arrange({"s": ["s-2", "s-3"]}, {"s": 2}, 2.0)
    assert [slot.member for slot in slots.of("s")] == ["s-3", "s-2"]
    assert slots.replaced_by("s", "s-3", 3.0) == "s-1"
    assert slots.replaced_by("s", "s-3", 3.0 + FRESH_S) == ""


def test_places_that_are_not_wanted_go_after_a_while() -> None:
    slots = Slots()
    slots.arrange({"s": ["s-1", "s-2"]}, {"s": 1}, 0.0)
    slots.arrange({"s": ["s-1"]}, {"s": 1}, 1.0)
    assert [slot.missed for slot in slots.of("s")] == [False, False]
    slots.arrange({"s": ["s-1"]}, {"s": 1}, 1.0 + FRESH_S)
    assert len(slots.of("s")) == 1


def test_whoever_was_replaced_beforehand_is_not_missed() -> None:
    slots = Slots()
    slots.arrange({"s": ["s-1"]}, {"s": 1}, 0.0)
    slots.arrange({"s": ["s-1", "s-2"]}, {"s": 1}, 1.0)
    slots.arrange({"s": ["s-2"]}, {"s": 1}, 2.0)
    assert [(slot.predecessor, slot.missed) for slot in slots.of("s")] == [("s-1", False), ("", False)]
    slots.arrange({"s": ["s-3"]}, {"s": 1}, 3.0)
    assert slots.replaced_by("s", "s-3", 3.0) == "s-2"


# ---- what is shown


def test_a_snapshot_has_rates_per_replica_stage_and_in_all() -> None:
    rates, slots, status = Rates(), Slots(), status_of(replicas={"embed": 1, "left": 2, "right": 1, "join": 1})
    for second in range(3):
        for replica in status["replicas"]:
            replica["stats"] = {"done": 20 * second, "busy_s": 0.5 * second, "service_s": 0.025}
        status["gateways"][0]["stats"] = {"open": 2, "answered": 40 * second, "failed": second, "p99_s": 0.05}
        observe(rates, slots, status, float(second))
    shown = snapshot(status, rates, slots, 2.0)
    json.dumps(shown)
    assert shown["totals"]["rate"] == 40.0
    assert shown["totals"]["bad_rate"] == 1.0
    assert shown["totals"]["p99_s"] == 0.05
    left = next(each for each in shown["stages"] if each["name"] == "left")
    assert (left["rate"], left["utilisation"], left["service_s"]) == (40.0, 0.5, 0.025)
    assert {each["rate"] for each in shown["replicas"]} == {20.0}


def test_a_replacement_does_not_inherit_a_rate() -> None:
    rates, slots, status = Rates(), Slots(), status_of()
    for second in range(3):
        status["replicas"][0]["stats"] = {"done": 100 * second}
        observe(rates, slots, status, float(second))
    status["replicas"][0] = member_of("embed", 2, stats={"done": 5})
    observe(rates, slots, status, 3.0)
    shown = snapshot(status, rates, slots, 3.0)["replicas"][0]
    assert (shown["rate"], shown["replaces"]) == (None, "embed-1")


def test_the_graph_has_a_course_for_each_world() -> None:
    slots, status = Slots(), status_of(replicas={"embed": 1, "left": 2, "right": 1, "join": 1})
    observe(Rates(), slots, status, 0.0)
    status["edges"].append({"from": "embed-1", "to": "left-77", "state": "broken", "attempts": 1, "error": "gone"})
    view = graph_view(status, slots)
    assert len(view["edges"]) == 8  # not the one whose end is unknown
    assert set(view["drawings"]["wide"]["members"]) == {"embed-1", "left-1", "left-2", "right-1", "join-1"}
    assert all(edge["wide"].startswith("M") and edge["upright"].startswith("M") for edge in view["edges"])


# ---- stories


@pytest.mark.parametrize("kind", [each.__name__ for each in FleetEvent.__subclasses__()])
def test_every_event_has_a_story(kind: str) -> None:
    story = tell(event(kind))
    assert story.category in CATEGORIES
    assert kind not in story.text, "it is told in words"


def test_unknown_events_are_told_as_they_are() -> None:
    assert tell({"kind": "New", "number": 3, "at": 1.0, "what": 7}).text == "New: what=7"
    assert tell({"kind": "Scaled", "number": 3, "at": 1.0}).category == "other"
    ended = {"kind": "ProcessEnded", "member": "a-1", "stage": "a", "last_lines": "", "at": 1.0}
    assert "was killed by SIGKILL" in tell({**ended, "returncode": -9}).text
    assert "was killed by signal 35" in tell({**ended, "returncode": -35}).text
    assert tell({**ended, "returncode": "odd"}).category == "other"
    assert tell({**ended, "returncode": 1, "last_lines": "it said\nthis"}).detail == "it said\nthis"


def test_a_world_that_was_left_is_no_fault() -> None:
    left = event("EdgeBroken", upstream="a-1", downstream="b-1", error="PeerLeftError: it left. Others go on.")
    died = event("EdgeBroken", upstream="a-1", downstream="b-1", error="PeerDiedError: it died. Others go on.")
    assert tell(left).category == "world"
    assert (tell(died).category, tell(died).text) == ("fault", "the world a-1 → b-1 broke: PeerDiedError: it died.")
    assert tell(died).detail == died["error"]


# ---- the recorder


class Scripted:
    """A controller that may fail, and be started again."""

    def __init__(self) -> None:
        self.happened: list[dict[str, Any]] = []
        self.fails = False

    async def status(self) -> ControllerStatus:
        if self.fails:
            raise MultiworldError("nobody listens")
        return known({**status_of(), "num_events": len(self.happened)})

    async def lines(self, member: str, last: int) -> list[str]:
        return []

    async def events(self, since: int) -> list[EventRecord]:
        return [from_json(EventRecord, each) for each in self.happened[since:]]

    def close(self) -> None:
        """It holds nothing."""


async def looked(recorder: Recorder) -> None:
    await recorder._look()


async def test_what_happened_outlives_the_controller() -> None:
    source = Scripted()
    source.happened = [event("HostLost", number=n + 1, at=float(n + 1), host=f"h{n}") for n in range(3)]
    async with Recorder(source) as recorder:
        source.fails = True
        await looked(recorder)
        await looked(recorder)
        assert recorder.shown is not None
        assert recorder.shown.silent is not None
        assert recorder.shown.silent.why == "nobody listens"
        source.fails = False
        source.happened = [event("HostLost", number=1, at=9.0, host="new")]
        await looked(recorder)
        kinds = [(story.kind, story.about) for story in recorder.stories()]
        assert kinds[3:] == [("ControllerSilent", ""), ("HostLost", "new"), ("ControllerBack", "")]
        assert recorder.shown.silent is None
        source.happened.append(event("HostLost", number=2, at=9.5, host="newer"))
        await looked(recorder)
        assert [story.about for story in recorder.stories(6)] == ["newer"]


async def test_what_is_not_understood_is_said_and_ends_nothing() -> None:
    class Newer(Scripted):
        async def status(self) -> ControllerStatus:
            return known({**status_of(), "replicas": [{"name": "other words"}]})

    async with Recorder(Newer()) as recorder:
        assert [story.kind for story in recorder.stories()] == ["ControllerSilent"]
        assert "is not understood" in recorder.stories()[0].text
        assert json.loads(json.dumps(to_json(recorder.data())))["snapshot"] is None


async def test_who_waits_is_woken_by_what_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "LOOK_S", 0.01)
    monkeypatch.setattr(recorder_module, "IDLE_LOOK_S", 0.01)
    source = Scripted()
    async with Recorder(source) as recorder:
        version = recorder.version
        waiting = asyncio.create_task(recorder.wait(version, 30.0))
        await asyncio.sleep(0)
        source.fails = True
        await waiting
        assert recorder.version > version
    await recorder.wait(recorder.version, 30.0)  # closed: nothing more will come


# ---- the application


async def ask(app: PageApp, path: str, *, method: str = "GET", query: str = "", **headers: str) -> tuple[int, bytes]:
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [
            (name.lower().replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()
        ],
    }
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


async def test_the_application_answers_at_its_paths() -> None:
    async with Recorder(Scripted()) as recorder:
        app = PageApp(recorder)
        for path in ("/page", "/page/"):
            code, body = await ask(app, path)
            assert (code, body[:15]) == (200, b"<!doctype html>")
        code, body = await ask(app, "/page/data")
        assert (code, json.loads(body)["run"]) == (200, recorder.run)
        assert await ask(app, "/page", method="HEAD") == (200, b"")
        assert (await ask(app, "/page", method="POST"))[0] == 405
        assert (await ask(app, "/page/x"))[0] == 404
        assert (await ask(app, "/page", Host="rebound.example.org"))[0] == 403
        assert (await ask(app, "/page/data", Host="localhost", Origin="http://other.example.org"))[0] == 403
        assert (await ask(app, "/page/data", Host="localhost:80", Origin="http://localhost"))[0] == 200
        assert (await ask(app, "/page/events"))[0] == 200, "and it ends when the reader goes"
        for last_id in ("\xff", f"{recorder.run}:\xb2", f"{recorder.run}:1"):
            assert (await ask(app, "/page/events", Last_Event_Id=last_id))[0] == 200
        assert app._num_streams == 0


async def test_other_hosts_need_a_token() -> None:
    async with Recorder(Scripted()) as recorder:
        app = PageApp(recorder, token="secret", sites=SiteRule(is_open=True))
        assert (await ask(app, "/page", query="token=secret", Host="any.example.org"))[0] == 200
        assert (await ask(app, "/page", Authorization="Bearer secret"))[0] == 200
        assert (await ask(app, "/page", query="token=other"))[0] == 401
        assert (await ask(PageApp(recorder, sites=SiteRule(is_open=True)), "/page", query="token="))[0] == 403


async def test_readers_behind_a_proxy_need_a_token() -> None:
    proxied = {"Host": "models.example.org"}
    async with Recorder(Scripted()) as recorder:
        sites = site_rule("127.0.0.1", allowed_hosts=("models.example.org",))
        app = PageApp(recorder, token="secret", sites=sites)
        assert (await ask(app, "/page", Host="localhost:8000"))[0] == 200
        assert (await ask(app, "/page/data", **proxied))[0] == 401
        assert (await ask(app, "/page/data", query="token=secret", **proxied))[0] == 200
        assert (await ask(app, "/page", Host="127.0.0.1:8000", X_Forwarded_For="10.0.0.7"))[0] == 401
        assert (await ask(PageApp(recorder, sites=sites), "/page", Authorization="Bearer ", **proxied))[0] == 403


async def test_no_text_of_a_deployment_ends_the_document() -> None:
    source = Scripted()
    source.happened = [event("HostLost", number=1, at=1.0, host="</script><script>alert(1)</script>")]
    async with Recorder(source) as recorder:
        assert "<script>alert" not in document(recorder.data())


def test_the_policy_allows_exactly_what_the_document_holds() -> None:
    text = document(Recorder(Scripted()).data())
    for tag in ("script", "style"):
        [content] = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in PAGE.policy
    assert not re.findall(r"@\w+@", text)


def test_the_document_has_a_filter_for_each_kind_of_event() -> None:
    assert tuple(re.findall(r'type="checkbox" value="(\w+)"', document(Recorder(Scripted()).data()))) == CATEGORIES
