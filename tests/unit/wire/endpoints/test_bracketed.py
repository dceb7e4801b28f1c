"""How a host is written in front of a port."""

from __future__ import annotations

import pytest

from multiworld.wire.endpoints.bracketed import bracketed


@pytest.mark.parametrize(
    ("host", "shown"), [("host-7", "host-7"), ("10.0.0.1", "10.0.0.1"), ("::1", "[::1]"), ("[fe80::1]", "[fe80::1]")]
)
def test_only_an_ipv6_address_stands_in_brackets_once(host: str, shown: str) -> None:
    assert bracketed(host) == shown
