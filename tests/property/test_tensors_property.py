"""Descriptions of tensors: any payload survives the journey; noise raises ProtocolError and nothing else."""

from __future__ import annotations

import contextlib

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from multiworld.channel.base import Payload
from multiworld.channel.payload.tensors import DTYPES, describe_text, parse_layout, payload_segments
from multiworld.errors import ProtocolError
from tests.unit.channel.payload.test_tensors import same, tensor_of, travel

pytestmark = pytest.mark.filterwarnings("ignore:(ComplexHalf|BComplex32)")

SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)
TENSORS = st.builds(tensor_of, st.sampled_from(DTYPES), SHAPES, st.integers(0, 250))
PAYLOADS = TENSORS | st.lists(TENSORS, max_size=4) | st.dictionaries(st.text(max_size=5), TENSORS, max_size=4)


def tensors_of(payload: Payload) -> list[Tensor]:
    if isinstance(payload, Tensor):
        return [payload]
    return list(payload.values()) if isinstance(payload, dict) else payload


@given(PAYLOADS)
def test_any_payload_survives(payload: Payload) -> None:
    received = travel(payload)
    assert type(received) is type(payload)
    if isinstance(payload, dict):
        assert isinstance(received, dict)
        assert list(received) == list(payload)
    pairs = zip(tensors_of(received), tensors_of(payload), strict=True)
    assert all(same(left, right) for left, right in pairs)


@given(PAYLOADS, st.data())
def test_a_description_that_was_changed_on_the_way_is_refused_or_rebuilt_within_its_bytes(
    payload: Payload, data: st.DataObject
) -> None:
    meta, segments, _ = payload_segments(payload)
    size = sum(map(len, segments))
    position = data.draw(st.integers(0, len(meta)))
    removed = data.draw(st.integers(0, 3))
    changed = meta[:position] + data.draw(st.binary(max_size=9)) + meta[position + removed :]
    with contextlib.suppress(ProtocolError):
        rebuilt = parse_layout(changed, size).build(torch.zeros(size, dtype=torch.uint8))
        assert sum(tensor.nbytes for tensor in tensors_of(rebuilt)) <= size
        assert describe_text(changed)


@given(st.binary(max_size=100), st.integers(0, 300))
def test_noise_raises_a_protocol_error_and_nothing_else(noise: bytes, size: int) -> None:
    with contextlib.suppress(ProtocolError):
        parse_layout(noise, size).build(torch.zeros(size, dtype=torch.uint8))
    with contextlib.suppress(ProtocolError):
        describe_text(noise)
