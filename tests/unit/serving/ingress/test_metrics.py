"""What Prometheus reads of gateways: by its rules, and the same from whichever gateway is scraped."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson
import pytest

from multiworld.observe.prometheus import families_text, from_json, joined, to_json
from multiworld.serving.control.client.questions import MetricsTold
from multiworld.serving.errors import DeploymentError
from multiworld.serving.gateway import Metric, fleet_metrics
from multiworld.serving.gateway.fleet_metrics import FleetMetrics
from multiworld.serving.gateway.http_metrics import HttpCounts, families_of
from multiworld.serving.ingress.metrics import request_metrics
from multiworld.serving.member.reports import GatewayCounts
from tests.unit.exposition import check_with_promtool, checked_samples
from tests.unit.serving.gateway.client import Client, FakePipeline

COUNTS = GatewayCounts(
    answered=7,
    failed=1,
    refused=2,
    retried=3,
    replayed=4,
    open=5,
    p50_s=0.25,
    p95_s=0.5,
    p99_s=0.5,
    latency_sum_s=2.5,
)


class RealMetrics(FakePipeline):
    def metrics(self) -> Mapping[str, Metric | float]:
        return request_metrics(COUNTS)


async def scraped(client: Client) -> str:
    return (await client.get("/metrics")).body.decode()


def family_list(num_answers: int) -> list[Any]:
    counts = HttpCounts()
    for _ in range(num_answers):
        counts.answered("/infer", 200)
        counts.took(0.01)
    return [
        *counts.families(num_connections=1, num_open=0, held_bytes=0),
        *families_of(request_metrics(replace(COUNTS, answered=num_answers))),
    ]


async def test_latencies_are_a_summary_with_sum_and_count() -> None:
    found = checked_samples(await scraped(Client(RealMetrics())))
    assert found['multiworld_request_latency_seconds{quantile="0.5"}'] == 0.25
    assert found["multiworld_request_latency_seconds_sum"] == 2.5
    assert found["multiworld_request_latency_seconds_count"] == 7


async def test_promtool_has_nothing_to_say_of_a_gateway() -> None:
    client = Client(RealMetrics())
    await client.post_json("/infer", {"inputs": [1]})
    check_with_promtool(await scraped(client))
    several = [[each.labelled("gateway", name) for each in family_list(3)] for name in ("gateway-1", "gateway-2")]
    check_with_promtool(families_text(joined(several)))


async def test_a_scrape_of_either_gateway_shows_both_and_never_less_than_before() -> None:
    told = {"gateway-1": to_json(family_list(3)), "gateway-2": to_json(family_list(5))}

    async def ask() -> MetricsTold:
        return MetricsTold(gateways=orjson.loads(orjson.dumps(told)))

    shown = []
    for name, live in (("gateway-1", 9), ("gateway-2", 6), ("gateway-1", 10)):
        text = families_text(await FleetMetrics(name, ask).gather(family_list(live)))
        shown.append(checked_samples(text))
    assert shown[0] == shown[1] == shown[2], "what each told last, also of the one that is scraped"
    assert shown[0]['multiworld_requests_total{gateway="gateway-1",outcome="answered"}'] == 3
    assert shown[0]['multiworld_requests_total{gateway="gateway-2",outcome="answered"}'] == 5
    assert all("{gateway=" in sample for sample in shown[0])


async def test_one_gateway_shows_its_numbers_of_this_moment() -> None:
    async def ask() -> MetricsTold:
        return MetricsTold(gateways={"gateway-1": to_json(family_list(3))})

    found = checked_samples(families_text(await FleetMetrics("gateway-1", ask).gather(family_list(9))))
    assert found['multiworld_requests_total{gateway="gateway-1",outcome="answered"}'] == 9


async def test_a_gateway_that_the_controller_has_not_heard_yet_shows_itself_and_the_others() -> None:
    async def ask() -> MetricsTold:
        return MetricsTold(gateways={"gateway-2": to_json(family_list(5))})

    found = checked_samples(families_text(await FleetMetrics("gateway-1", ask).gather(family_list(9))))
    assert found['multiworld_requests_total{gateway="gateway-1",outcome="answered"}'] == 9
    assert found['multiworld_requests_total{gateway="gateway-2",outcome="answered"}'] == 5


@pytest.mark.parametrize("problem", ["silent", "gone", "nonsense"])
async def test_without_a_controller_a_gateway_shows_its_own(problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_metrics, "ASK_S", 0.01)

    async def ask() -> MetricsTold:
        if problem == "silent":
            await asyncio.Event().wait()
        if problem == "gone":
            raise DeploymentError("no controller can be reached")
        return MetricsTold(gateways={"gateway-2": [["http", "counter"]]})

    found = checked_samples(families_text(await FleetMetrics("gateway-1", ask).gather(family_list(9))))
    assert found['multiworld_requests_total{gateway="gateway-1",outcome="answered"}'] == 9
    assert not any("gateway-2" in sample for sample in found)


def test_families_come_through_json_unchanged() -> None:
    families = family_list(2)
    assert families_text(from_json(orjson.loads(orjson.dumps(to_json(families))))) == families_text(families)
