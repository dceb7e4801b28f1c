"""What Gloo says of a rank while it connects: read from what the installed Gloo says; anything else is refused."""

from __future__ import annotations

import socket
import struct
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from multiworld.channel import registry
from multiworld.channel.gloo.group import acquire_device, release_device
from multiworld.channel.gloo.introduction import Introduction, come_as, read_introduction

needs_gloo = pytest.mark.skipif(not registry.available()["gloo"].works, reason="this PyTorch has no Gloo")


class _Alone(Store):
    """Nobody answers."""

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[str, bytes] = {}

    def set(self, key: str, value: Any) -> None:
        self.said[key] = bytes(value, "latin-1") if isinstance(value, str) else bytes(value)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        raise RuntimeError("nobody is here")


def introduction_of(host: str, rank: int, size: int) -> bytes:
    store = _Alone()
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices, options._threads = [acquire_device(host)], 1
    try:
        with pytest.raises(RuntimeError):
            dist.ProcessGroupGloo(store, rank, size, options)
    finally:
        options._devices = []
        release_device(host)
    (said,) = store.said.values()
    return said


@needs_gloo
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_address_and_numbers_are_read_from_what_gloo_says(host: str) -> None:
    if ":" in host and not _has_ipv6():
        pytest.skip("this machine has no IPv6 loopback")
    introduction = read_introduction(introduction_of(host, rank=1, size=3))
    assert introduction.address[0] == host
    assert introduction.address[1] > 0
    assert len(introduction.numbers) == 3
    assert introduction.numbers[0] != introduction.numbers[2]


@needs_gloo
def test_anything_else_is_refused() -> None:
    good = introduction_of("127.0.0.1", rank=0, size=2)
    (name_size,) = struct.unpack_from("=q", good)
    family_at = 16 + name_size
    for bad in (
        b"",
        good[:20],
        good[:-3],
        struct.pack("=q", -1) + good[8:],
        struct.pack("=q", 1 << 60) + good[8:],
        good[:family_at] + b"\xff\xff" + good[family_at + 2 :],
    ):
        with pytest.raises(ValueError, match="not what Gloo is known to say"):
            read_introduction(bad)


def test_whoever_comes_names_the_number_that_its_rank_was_given() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        introduction = Introduction(socket.AF_INET, server.getsockname(), [7, 8, 9])
        with come_as(2, introduction):
            accepted, _ = server.accept()
            with accepted:
                assert struct.unpack("=q", accepted.recv(64)) == (9,)


def test_coming_to_nobody_is_an_error_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        gone = Introduction(socket.AF_INET, server.getsockname(), [0, 0])
    with pytest.raises(OSError, match="refused"):
        come_as(0, gone)


def test_coming_as_a_rank_that_was_given_no_number_is_an_error() -> None:
    with pytest.raises(ValueError, match="rank 1 has none of the 1 numbers"):
        come_as(1, Introduction(socket.AF_INET, ("127.0.0.1", 1), [0]))


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False
