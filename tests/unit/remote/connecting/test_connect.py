"""Reaching nodes: what is wrong is said at once, without a process or a socket."""

from __future__ import annotations

import pytest

from multiworld.cli.nodes import parser_of_serve
from multiworld.remote import ConnectError, connect
from multiworld.remote.connecting import launched
from multiworld.remote.connecting.addresses import urls_of
from multiworld.remote.connecting.settings import Settings
from multiworld.world.launcher.launched import AGENT_VARIABLE, WORKER_VARIABLE


def settings(backend: str = "auto", token: str | None = None) -> Settings:
    return Settings(token=token, backend=backend, allow=(), num_threads=1, lease_s=1.0)


def test_a_backend_that_is_not_there_is_refused_before_anything_is_started() -> None:
    with pytest.raises(ValueError, match="unknown backend 'carrier-pigeon': expected one of auto, shm, tcp"):
        connect(backend="carrier-pigeon")


def test_without_launcher_and_addresses_the_error_names_the_ways() -> None:
    with pytest.raises(ConnectError, match=r"multiworld exec .*multiworld run.*addresses.*remote\.local"):
        connect()


def test_a_token_of_ones_own_is_refused_under_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(AGENT_VARIABLE, "agent")
    monkeypatch.setenv(WORKER_VARIABLE, "worker")
    with pytest.raises(ConnectError, match="the launcher has given all its ranks one already"):
        launched.connect_launched(settings(token="secret"))


def test_addresses_are_a_list_of_urls() -> None:
    assert urls_of("tcp://a:29500, b:29501") == ["tcp://a:29500", "tcp://b:29501"]


def test_an_address_without_a_port_has_that_of_nodes_serve() -> None:
    assert parser_of_serve().parse_args([]).port == 29500
    assert urls_of("10.0.0.7,tcp://a, tcp://b/,[fd00::7],c:1,tcp://[fd00::7]:2") == [
        "tcp://10.0.0.7:29500",
        "tcp://a:29500",
        "tcp://b:29500",
        "tcp://[fd00::7]:29500",
        "tcp://c:1",
        "tcp://[fd00::7]:2",
    ]


@pytest.mark.parametrize(
    ("addresses", "reason"),
    [
        ("", "expected tcp://HOST:PORT"),
        ("a,", "expected tcp://HOST:PORT"),
        ("http://a", "expected tcp://HOST:PORT"),
        ("a:b", "the port 'b' is not a number"),
        ("a:", "the port '' is not a number"),
        ("fd00::8", r"in brackets, as tcp://\[fd00::7\]:29500"),
        ("a:1,tcp://a:1", "named twice"),
        ("a,tcp://a:29500", "named twice"),
    ],
)
def test_bad_addresses_are_refused(addresses: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        connect(addresses)


def test_nccl_between_the_nodes_leaves_what_the_master_sends_to_another_channel() -> None:
    assert settings("nccl").bulk_backend == "auto"
    assert settings("gloo").bulk_backend == "gloo"
