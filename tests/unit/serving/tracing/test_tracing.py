"""What is noted on a traced request, which spans that makes, and what OpenTelemetry's SDK is given."""

from __future__ import annotations

import asyncio
import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from multiworld.errors import MessageError
from multiworld.serving.errors import DeploymentError, StageFailedError
from multiworld.serving.flow.context import RequestContext, decode, encode
from multiworld.serving.gateway.options import GatewayOptions
from multiworld.serving.gateway_program import GatewayArguments, TraceArguments
from multiworld.serving.gateway_program import main as run_gateway
from multiworld.serving.graph import Stage
from multiworld.serving.launch import _tracing
from multiworld.serving.member.exit_status import IN_VAIN, starts_again
from multiworld.serving.tracing import Tracing
from multiworld.serving.tracing.choice import ENDPOINT_VARIABLE, chosen_tracing
from multiworld.serving.tracing.hops import Executed, Hop, Hops, Sent, merged
from multiworld.serving.tracing.spans import Journey, spans_of
from multiworld.serving.tracing.traceparent import Parent, is_traced, parse_traceparent
from multiworld.wire.messages import to_json
from tests.unit.serving.wires import Plant

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_hops_of_others_are_read_once_and_what_is_none_is_left_out() -> None:
    own = Hops().with_sent("a", "a-1", at=1.0, attempt=1)
    context = RequestContext(key="k", weights={"a": (2,)}, hops=own)
    got = decode(encode(context))
    assert (got.key, got.weights) == (context.key, context.weights)
    assert got.hops is not None
    assert got.hops.read() == own.read() == merged([own, got.hops]).read()
    assert json.loads(encode(got)) == json.loads(encode(context))
    assert Hops(received=({"to": 1}, None, "x", {"by": "a-1"})).read() == ()


@pytest.mark.parametrize("told", [b"[]", b'{"key": 1}', b'{"weights": {"a": [1, "x"]}}', b'{"hops": {}}'])
def test_a_context_that_does_not_decode_is_refused(told: bytes) -> None:
    with pytest.raises(MessageError):
        decode(told)


def journey(hops: tuple[Hop, ...], **others: Any) -> Journey:
    fields = {"pipeline": "calc", "gateway": "gateway-1", "request_id": "r", "opened": 10.0, "ended": 20.0}
    return Journey(attempts=1, hops=hops, **{**fields, **others})


def test_a_traceparent_is_read_and_what_is_malformed_is_as_none() -> None:
    parent = parse_traceparent(TRACEPARENT)
    assert parent == Parent(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, True)
    assert parse_traceparent(TRACEPARENT[:-2] + "00") == Parent(parent.trace_id, parent.span_id, False)
    assert parse_traceparent("01" + TRACEPARENT[2:] + "-more") is not None
    for bad in ("", "00-1-2-01", "ff" + TRACEPARENT[2:], TRACEPARENT + "-more", f"00-{'0' * 32}-b7ad6b7169203331-01"):
        assert parse_traceparent(bad) is None


def test_a_caller_that_traces_decides_and_else_the_ratio() -> None:
    parent = Parent(1, 2, True)
    assert is_traced(parent, 0.0, 0.5)
    assert not is_traced(Parent(1, 2, False), 1.0, 0.5)
    assert is_traced(None, 0.6, 0.5)
    assert not is_traced(None, 0.0, 0.0)


def test_a_request_that_was_sent_again_says_why() -> None:
    extra = Hops().with_sent("a", "a-1", at=1.0, attempt=1)
    again = extra.with_sent("a", "a-2", at=2.0, attempt=1, holders=["a-2"])
    third = again.with_sent("a", "a-3", at=3.0, attempt=1, holders=["a-2", "a-3"])
    assert [hop.why for hop in third.read() if isinstance(hop, Sent)] == ["", "lost", "suspect"]
    assert len(extra.own) == 1


def test_spans_of_a_replayed_request() -> None:
    extra = Hops().with_sent("a", "a-1", at=11.0, attempt=1)
    extra = extra.with_sent("a", "a-2", at=13.0, attempt=1)
    extra = extra.with_hop(Executed(by="a-2", stage="a", arrived=13.5, began=14.0, ended=16.0, batch=3, version=2))
    extra = extra.with_sent("b", "b-1", at=16.25, attempt=1)
    extra = extra.with_hop(
        Executed(by="b-1", stage="b", arrived=16.5, began=16.5, ended=17.0, batch=1, version=1, error="E: no")
    )
    root, (lost, second, third) = spans_of(journey(extra.read(), error="StageFailedError", error_text="it failed"))
    assert (root.began, root.ended, root.error) == (10.0, 20.0, "it failed")
    assert [event.name for event in root.events] == ["replayed"]
    assert (lost.name, lost.began, lost.ended) == ("a", 11.0, 13.0)
    assert "lost" in lost.error
    assert lost.attributes["multiworld.wait_s"] == 1.0
    assert second.error == ""
    assert {name.removeprefix("multiworld."): value for name, value in second.attributes.items()} == {
        "stage": "a",
        "replica": "a-2",
        "attempt": 2,
        "gateway_attempt": 1,
        "transfer_s": 0.5,
        "queue_s": 0.5,
        "compute_s": 2.0,
        "batch": 3,
        "weights": 2,
    }
    assert [event.name for event in second.events] == ["replayed", "arrived", "executed"]
    assert (third.name, third.error, third.attributes["multiworld.wait_s"]) == ("b", "E: no", 0.25)


def test_a_suspect_that_another_overtook_is_no_error_and_one_without_a_result_is() -> None:
    extra = Hops().with_sent("a", "a-1", at=11.0, attempt=1)
    extra = extra.with_sent("a", "a-2", at=13.0, attempt=1, holders=["a-1", "a-2"])
    _, (slow, silent) = spans_of(journey(extra.read()))
    assert (slow.error, [event.name for event in slow.events]) == ("", ["suspect"])
    assert (silent.error, silent.ended) == ("no result came from it", 20.0)


def test_parts_that_were_joined_have_each_hop_once() -> None:
    extra = Hops().with_sent("a", "a-1", at=1.0, attempt=1)
    left, right = extra.with_sent("b", "b-1", at=2.0, attempt=1), extra.with_sent("c", "c-1", at=2.0, attempt=1)
    assert [hop.to for hop in merged([left, right, Hops()]).read() if isinstance(hop, Sent)] == ["a-1", "b-1", "c-1"]


@pytest.mark.parametrize(
    ("url", "posted"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces"),
        ("https://collector/otlp/v1/traces", "https://collector/otlp/v1/traces"),
    ],
)
def test_spans_are_posted_below_the_url(url: str, posted: str) -> None:
    assert Tracing(url=url).traces_url == posted


ENDPOINT = "http://collector:4318"


@pytest.mark.parametrize(
    ("url", "ratio", "endpoint", "expected"),
    [
        (None, None, "", None),
        ("http://a:4318", None, "", Tracing(url="http://a:4318", ratio=1.0)),
        ("http://a:4318", 0.5, ENDPOINT, Tracing(url="http://a:4318", ratio=0.5)),
        (None, None, ENDPOINT, Tracing(url=ENDPOINT, ratio=0.0)),
        (None, 0.5, ENDPOINT, Tracing(url=ENDPOINT, ratio=0.5)),
        (None, 0.5, f"{ENDPOINT}/otel/", Tracing(url=f"{ENDPOINT}/otel/v1/traces", ratio=0.5)),
    ],
)
def test_an_endpoint_in_the_environment_says_where_traces_go_and_asks_for_none(
    url: str | None, ratio: float | None, endpoint: str, expected: Tracing | None
) -> None:
    assert chosen_tracing(url, ratio, endpoint) == expected


@pytest.mark.parametrize(
    ("url", "ratio", "endpoint", "named"),
    [
        (None, None, "collector:4317", ENDPOINT_VARIABLE),
        ("collector:4317", None, ENDPOINT, "--trace: "),
        ("http://a:4318", 2.0, "", "--trace-ratio"),
        (None, 0.5, "", ENDPOINT_VARIABLE),
    ],
)
def test_an_error_names_the_option_or_the_variable(
    url: str | None, ratio: float | None, endpoint: str, named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        chosen_tracing(url, ratio, endpoint)


def test_a_gateway_ends_for_good_where_the_extra_is_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    given = GatewayArguments(
        member="gateway-1",
        folder=str(tmp_path),
        job="job",
        token="token",
        store="127.0.0.1:1",
        lease_s=1.0,
        controller=("127.0.0.1", 1),
        http=GatewayOptions(),
        tracing=TraceArguments(url=ENDPOINT, ratio=0.0),
    )
    with pytest.raises(SystemExit) as ended:
        run_gateway(to_json(given))
    assert ended.value.code == IN_VAIN
    assert not starts_again(IN_VAIN)
    assert "gateway-1: traces need the extra 'tracing'" in caplog.text


@pytest.mark.parametrize("endpoint", ["collector:4317", ENDPOINT])
def test_what_only_the_environment_says_keeps_nobody_from_serving(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(ENDPOINT_VARIABLE, endpoint)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert _tracing(Namespace(trace=None, trace_ratio=None)) == {}
    assert f"{ENDPOINT_VARIABLE} is set, but no request is traced" in capsys.readouterr().err
    with pytest.raises((DeploymentError, ValueError)):
        _tracing(Namespace(trace=None, trace_ratio=0.5))


@pytest.mark.parametrize("fields", [{}, {"url": "collector:4318"}, {"url": "http://c", "ratio": 1.5}])
def test_settings_that_make_no_sense_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        Tracing(**fields)


class Journal:
    """A tracer that remembers."""

    def __init__(self, *, traces: bool = True) -> None:
        self.traces = traces
        self.began: list[str] = []
        self.journeys: list[Journey] = []

    def begin(self, traceparent: str) -> object:
        self.began.append(traceparent)
        return traceparent if self.traces else None

    def finish(self, context: object, journey: Journey) -> None:
        self.journeys.append(journey)


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def plus(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def fails(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("no")


async def test_a_rhombus_is_traced_through_all_its_stages() -> None:
    plant = Plant(
        [Stage("a", twice), Stage("l", twice), Stage("r", twice, inputs=("a",)), Stage("m", plus, inputs=("l", "r"))]
    )
    plant.ingress.tracer = journal = Journal()
    for name in ("m-1", "l-1", "r-1", "a-1"):
        await plant.add(name)
    assert float(await plant.ingress.infer(torch.ones(1))) == 8.0  # type: ignore[arg-type]
    await plant.aclose()
    (told,) = journal.journeys
    root, below = spans_of(told)
    assert (root.name, root.error) == ("infer pipeline", "")
    assert sorted((span.name, span.error) for span in below) == [("a", ""), ("l", ""), ("m", ""), ("r", "")]


async def test_what_fails_is_cancelled_or_not_traced() -> None:
    plant = Plant([Stage("a", twice), Stage("b", fails)])
    plant.ingress.tracer = journal = Journal()
    for name in ("b-1", "a-1"):
        await plant.add(name)
    with pytest.raises(Exception, match="no"):
        await plant.ingress.infer(torch.ones(1))
    asking = asyncio.ensure_future(plant.ingress.infer(torch.ones(1)))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    journal.traces = False
    with pytest.raises(Exception, match="no"):
        await plant.ingress.infer(torch.ones(1))
    await plant.aclose()
    failed, cancelled = journal.journeys
    assert failed.error == "StageFailedError"
    assert [span.error for span in spans_of(failed)[1]][-1].startswith("ValueError: no")
    assert cancelled.error == "CancelledError"
    assert len(journal.began) == 3


async def test_an_error_whose_text_cannot_be_read_is_traced_all_the_same() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def odd(x: torch.Tensor) -> torch.Tensor:
        raise Odd

    plant = Plant([Stage("a", odd)])
    plant.ingress.tracer = journal = Journal()
    await plant.add("a-1")
    with pytest.raises(StageFailedError, match="cannot be read"):
        await plant.ingress.infer(torch.ones(1))
    await plant.aclose()
    (failed,) = journal.journeys
    assert [span.error for span in spans_of(failed)[1]][-1].startswith("Odd: (its message cannot be read)")
