"""Constants of calls come back with their type, and nothing else is built from what a stranger sends."""

from __future__ import annotations

import math
from enum import IntEnum

import pytest
import torch

from multiworld.errors import ProtocolError
from multiworld.remote.protocol.values import MAX_DEPTH, from_json, to_json


class Choice(IntEnum):
    ONE = 1


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        2**70,
        -0.0,
        1e-310,
        math.inf,
        complex(0.1, -0.0),
        "sum",
        torch.float16,
        torch.strided,
        torch.channels_last,
        torch.device("cuda", 1),
        [1, [2.5, None], []],
    ],
)
def test_a_constant_comes_back_as_it_was(value: object) -> None:
    back = from_json(to_json(value))
    assert type(back) is type(value)
    assert repr(back) == repr(value)


def test_true_is_not_one() -> None:
    assert from_json(to_json(True)) is True
    assert type(from_json(to_json(1))) is int


def test_a_tuple_becomes_a_list_and_a_choice_its_number() -> None:
    assert from_json(to_json((1, 2))) == [1, 2]
    assert from_json(to_json(Choice.ONE)) == 1


def test_what_has_no_place_in_a_call_is_refused() -> None:
    with pytest.raises(TypeError, match="a set can't be sent to a node"):
        to_json({1})


@pytest.mark.parametrize(
    "shown",
    [
        1.5,
        {},
        [],
        ["float"],
        ["float", "one"],
        ["float", 1.5],
        ["float", "0x1p99999"],
        ["complex", "0x1p0"],
        ["dtype", "load"],
        ["dtype", "os.system"],
        ["layout", "float32"],
        ["device", "nowhere"],
        ["list", 3],
        ["eval", "1"],
        [["float"], "1"],
    ],
)
def test_what_no_master_writes_is_refused(shown: object) -> None:
    with pytest.raises(ProtocolError, match="a bad constant"):
        from_json(shown)


def test_nesting_without_end_is_refused() -> None:
    shown: object = 1
    for _ in range(MAX_DEPTH + 2):
        shown = ["list", [shown]]
    with pytest.raises(ProtocolError):
        from_json(shown)
