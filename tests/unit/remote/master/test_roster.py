"""Which nodes a master takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from multiworld.remote.master.roster import NodePlace, mismatch
from multiworld.remote.protocol import messages
from multiworld.remote.protocol.messages import NodeHello
from multiworld.remote.version import own_version

HELLO = NodeHello(
    version=messages.VERSION,
    multiworld=own_version(),
    torch=torch.__version__,
    pid=1,
    host="b",
    devices=("cpu",),
)


def test_a_node_of_the_same_releases_fits_however_its_torch_was_built() -> None:
    assert mismatch(HELLO) == ""
    assert mismatch(replace(HELLO, torch=torch.__version__.partition("+")[0] + "+cu130")) == ""


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("torch", "1.0.0", "it has torch 1.0.0, and the master has "),
        ("multiworld", "0.0.1", "it has multiworld 0.0.1, and the master has "),
        ("version", 99, "it has protocol 99, and the master has "),
    ],
)
def test_a_node_of_another_release_is_refused_with_both(field: str, value: str | int, said: str) -> None:
    reason = mismatch(replace(HELLO, **{field: value}))  # type: ignore[arg-type]
    assert reason.startswith(said)
    assert reason.endswith("install the same release on both")


def test_a_node_at_an_address_has_another_number_in_the_names_of_its_worlds() -> None:
    assert NodePlace(number=3, store=None).names == ("remote-3", "remote-3-bulk")
    assert NodePlace(number=3, store=None, joins_as=lambda: 0).names == ("remote-0", "remote-0-bulk")
