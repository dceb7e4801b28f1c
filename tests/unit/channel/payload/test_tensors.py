"""How tensors are described on the wire: every dtype and shape survives, and what is corrupt is refused."""

from __future__ import annotations

import re
import struct

import pytest
import torch
from torch import Tensor

from multiworld.channel.base import Payload
from multiworld.channel.payload.tensors import (
    DICT,
    DTYPES,
    LIST,
    SINGLE,
    describe,
    describe_text,
    memory_of,
    pack,
    parse_layout,
    payload_segments,
)
from multiworld.errors import ProtocolError
from multiworld.wire.memory.copying import ALIGNMENT

pytestmark = pytest.mark.filterwarnings("ignore:(ComplexHalf|BComplex32)")

SHAPES: list[tuple[int, ...]] = [(), (1,), (0,), (3,), (2, 3), (0, 5), (5, 0, 2), (1,) * 9, (7, 1, 3, 2)]


def tensor_of(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 1) -> Tensor:
    """Return a tensor whose every byte counts (but of bool only 0 and 1)."""
    size = torch.empty(shape, dtype=dtype).nbytes
    data = (torch.arange(size) * 37 + seed) % (2 if dtype is torch.bool else 251)
    return data.to(torch.uint8).view(dtype).view(shape) if size else torch.empty(shape, dtype=dtype)


def same(left: Tensor, right: Tensor) -> bool:
    """Equal to the last bit, also where numbers are none."""
    return (left.dtype, left.shape) == (right.dtype, right.shape) and bytes(memory_of(left)) == bytes(memory_of(right))


def travel(payload: Payload) -> Payload:
    """Describe, concatenate, parse and rebuild, as a receiver does that knows nothing."""
    meta, segments, _ = payload_segments(payload)
    data = b"".join(segments)
    buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return parse_layout(meta, len(data)).build(buffer)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_tensor_of_any_dtype_and_shape_survives(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = tensor_of(dtype, shape)
    received = travel(tensor)
    assert isinstance(received, Tensor)
    assert same(received, tensor)


def test_every_dtype_whose_elements_are_whole_bytes_can_be_sent() -> None:
    known = {dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
    others = re.compile(r"torch\.(qu?int|bits|u?int[1-7]$|float4)")  # quantized, or with several elements to a byte
    assert {dtype for dtype in known if not others.match(str(dtype))} == set(DTYPES)


def test_a_list_of_mixed_tensors_survives() -> None:
    tensors = [tensor_of(dtype, shape, seed) for seed, (dtype, shape) in enumerate(zip(DTYPES, SHAPES, strict=False))]
    received = travel(tensors)
    assert isinstance(received, list)
    assert all(same(left, right) for left, right in zip(received, tensors, strict=True))


def test_a_dict_survives_with_its_keys_in_order() -> None:
    tensors = {key: tensor_of(torch.float32, (index,)) for index, key in enumerate(["z", "", "ä€😀", "a b", "\n"])}
    received = travel(tensors)
    assert isinstance(received, dict)
    assert list(received) == list(tensors)
    assert all(same(received[key], tensor) for key, tensor in tensors.items())


@pytest.mark.parametrize("empty", [[], {}])
def test_nothing_at_all_survives(empty: Payload) -> None:
    meta, segments, _ = payload_segments(empty)
    received = travel(empty)
    assert segments == []
    assert received == empty or received == []  # an empty dict needs no keys, so it has none
    assert type(received) is type(empty), meta


def test_tensors_of_a_list_are_aligned_and_share_one_buffer() -> None:
    tensors = [tensor_of(torch.uint8, (1,)), tensor_of(torch.float64, (3,)), tensor_of(torch.int16, (33,))]
    meta, segments, _ = payload_segments(tensors)
    layout = parse_layout(meta, sum(map(len, segments)))
    assert layout.offsets == [0, ALIGNMENT, 2 * ALIGNMENT]
    assert layout.size_bytes == 4 * ALIGNMENT
    packed = pack(tensors, layout.size_bytes)
    rebuilt = layout.build(packed)
    assert all(same(left, right) for left, right in zip(rebuilt, tensors, strict=True))


def test_memory_is_the_tensors_own_and_writable() -> None:
    tensor = torch.zeros(3, dtype=torch.int32)
    memory = memory_of(tensor)
    memory[4:8] = struct.pack("=i", 77)
    assert tensor.tolist() == [0, 77, 0]
    assert len(memory_of(torch.empty(0, 5))) == 0


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (torch.zeros(2, 3), "float32[2, 3]"),
        (torch.zeros((), dtype=torch.int64), "int64[]"),
        ([torch.zeros(1), torch.zeros(2, dtype=torch.bool)], "a list of 2 tensors (float32[1], bool[2])"),
        ({"a": torch.zeros(0)}, "a dict of 1 tensors (float32[0])"),
        ([torch.zeros(1)] * 5, "a list of 5 tensors (float32[1], float32[1], float32[1], float32[1], …)"),
    ],
)
def test_a_description_can_be_read_by_people(payload: Payload, text: str) -> None:
    assert describe_text(payload_segments(payload)[0]) == text


def test_a_payload_of_another_size_than_described_is_refused() -> None:
    meta = describe(torch.zeros(2, 3))
    with pytest.raises(ProtocolError, match="24 bytes, the frame 20"):
        parse_layout(meta, 20)


@pytest.mark.parametrize(
    "meta",
    [
        b"",
        b"\x03",
        struct.pack("<BBB", SINGLE, len(DTYPES), 0),
        struct.pack("<BBB", SINGLE, 0, 1),
        struct.pack("<BBBQ", SINGLE, 0, 1, 2**63),
        struct.pack("<BBBQQ", SINGLE, 0, 2, 0, 2**64 - 1),
        struct.pack("<BBB255Q", SINGLE, 0, 255, 0, *[2] * 254),
        struct.pack("<BBBB", SINGLE, 0, 0, 0),
        struct.pack("<B", LIST),
        struct.pack("<BI", LIST, 1),
        struct.pack("<BI", LIST, 2**32 - 1),
        struct.pack("<BIBB", LIST, 0, 0, 0),
        struct.pack("<BIBBI", DICT, 1, 0, 0, 5) + b"key",
        struct.pack("<BIBBI", DICT, 1, 0, 0, 2) + b"\xff\xff",
        struct.pack("<BIBB", DICT, 1, 0, 0),
    ],
)
def test_a_corrupt_description_is_refused(meta: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_layout(meta, 0)
    with pytest.raises(ProtocolError):
        describe_text(meta)
