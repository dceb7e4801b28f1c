"""What the programs of members are started with."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from multiworld.errors import MessageError
from multiworld.serving.gateway import GatewayOptions
from multiworld.serving.gateway_program import GatewayArguments, TraceArguments
from multiworld.serving.member.arguments import MemberArguments

GIVEN: dict[str, Any] = {
    "member": "a-1",
    "stage": "a",
    "folder": "/tmp/works",
    "job": "serving-1",
    "token": "secret",
    "store": "tcp://127.0.0.1:1",
    "lease_s": 4,
    "host": "127.0.0.1",
    "controller": ["127.0.0.1", 2],
}


def test_a_replica_is_started_with_what_the_order_says() -> None:
    given = MemberArguments.of({**GIVEN, "of_a_later_release": 1})
    assert (given.member, given.controller, given.lease_s) == ("a-1", ("127.0.0.1", 2), 4.0)


def test_a_gateway_gets_its_options_and_where_traces_go() -> None:
    http = GatewayOptions(port=8000, cors_origins=("https://a.example",), nan_policy="refuse", idle_timeout_s=7)
    order = json.loads(json.dumps({**GIVEN, "http": asdict(http), "tracing": {"url": "http://c", "ratio": 1}}))
    given = GatewayArguments.of(order)
    assert (given.http, given.tracing) == (http, TraceArguments(url="http://c", ratio=1.0))


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"lease_s": "4"}, "lease_s"),
        ({"controller": ["127.0.0.1"]}, "controller"),
        ({"http": {"nan_policy": "maybe"}}, "http.nan_policy"),
        ({"http": {"port": -1}}, "http"),
    ],
)
def test_what_is_wrong_is_named(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(MessageError) as refused:
        GatewayArguments.of({**GIVEN, "http": {}, **wrong})
    assert refused.value.field == field
