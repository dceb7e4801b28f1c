"""How tensors look on the wire: their memory as bytes, and a description that a receiver can rebuild them from.

No pickle.
"""

from __future__ import annotations

import math
import struct
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from ...errors import ProtocolError
from ...wire.memory.copying import ALIGNMENT, memory_at

Payload: TypeAlias = Tensor | list[Tensor] | dict[str, Tensor]
"""What one message may hold."""

DTYPES: tuple[torch.dtype, ...] = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.complex32,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    *(getattr(torch, name) for name in ("float8_e8m0fnu", "bcomplex32") if hasattr(torch, name)),  # from 2.7 and 2.14
)
CODES: Final = {dtype: code for code, dtype in enumerate(DTYPES)}
SINGLE: Final = 0
LIST: Final = 1
DICT: Final = 2
UINT8: Final = CODES[torch.uint8]
MAX_NUMEL: Final = 2**56  # more is not memory, and of an empty tensor not countable
SHORT_BYTES: Final = 64  # descriptions that come again and again
_BYTES: Final = struct.Struct("<BBBQ")
_PADDING: Final = bytes(ALIGNMENT)
_EMPTY: Final = memoryview(b"")


def memory_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous CPU tensor, writable. The caller keeps the tensor alive."""
    size_bytes = tensor.nbytes
    if not size_bytes:
        return _EMPTY
    return memory_at(tensor.data_ptr(), size_bytes)


def describe(tensor: Tensor) -> bytes:
    """Return the description of a single tensor: structure, dtype, shape."""
    return _describe(tensor.dtype, tensor.shape)


@lru_cache(maxsize=1024)
def _describe(dtype: torch.dtype, shape: torch.Size) -> bytes:
    return struct.pack(f"<BBB{len(shape)}Q", SINGLE, CODES[dtype], len(shape), *shape)


def describe_bytes(size_bytes: int) -> bytes:
    """Return the description of ``[size_bytes]`` uint8."""
    return _BYTES.pack(SINGLE, UINT8, 1, size_bytes)


class Layout(NamedTuple):
    """A parsed description. ``offsets`` are in bytes from the start of the payload of ``size_bytes``."""

    structure: int
    keys: list[str]
    dtypes: list[torch.dtype]
    shapes: list[tuple[int, ...]]
    offsets: list[int]
    size_bytes: int

    def build(self, buffer: Tensor) -> Payload:
        """Return the payload as views of ``buffer``, ``[size_bytes]`` uint8."""
        if self.structure == SINGLE and self.size_bytes:  # mostly
            dtype, shape = self.dtypes[0], self.shapes[0]
            flat = buffer if dtype is torch.uint8 else buffer.view(dtype)
            return flat if len(shape) == 1 else flat.view(shape)
        tensors = []
        for dtype, shape, offset in zip(self.dtypes, self.shapes, self.offsets, strict=True):
            size = _size(dtype, shape)
            if size:
                part = buffer[offset : offset + size]
                flat = part if dtype is torch.uint8 else part.view(dtype)
                tensors.append(flat if len(shape) == 1 else flat.view(shape))
            else:
                tensors.append(buffer.new_empty(shape, dtype=dtype))
        return self.of(tensors)

    def of_memory(self, memory: memoryview, offset: int) -> Tensor | None:
        """Return what is one tensor and no more as a view of writable memory, from a byte on; None for all else."""
        if self.structure != SINGLE or not self.size_bytes:
            return None
        dtype, shape = self.dtypes[0], self.shapes[0]
        flat = torch.frombuffer(memory, dtype=dtype, count=self.size_bytes // dtype.itemsize, offset=offset)
        return flat if len(shape) == 1 else flat.view(shape)

    def at(self, memory: Tensor, offset: int, views: dict[torch.dtype, Tensor]) -> Payload:
        """Return the payload as views of ``memory``, uint8, from a byte on; both are multiples of ``ALIGNMENT``.

        ``views`` keeps the memory as other types, for other payloads in it.
        """
        if self.structure != SINGLE or not self.size_bytes:
            return self.build(memory[offset : offset + self.size_bytes])
        dtype, shape = self.dtypes[0], self.shapes[0]
        flat = views.get(dtype)
        if flat is None:
            flat = views[dtype] = memory.view(dtype)
        return flat.as_strided(shape, _strides(shape), flat.storage_offset() + offset // dtype.itemsize)

    def of(self, tensors: list[Tensor]) -> Payload:
        """Return tensors that are as described in the structure that they were sent in."""
        if self.structure == SINGLE:
            return tensors[0]
        return tensors if self.structure == LIST else dict(zip(self.keys, tensors, strict=True))


def payload_segments(payload: Payload) -> tuple[bytes, list[memoryview], list[Tensor]]:
    """Return description, memory segments with their padding, and the tensors to keep alive."""
    if isinstance(payload, Tensor):
        return describe(payload), [memory_of(payload)], [payload]
    keys = list(payload) if isinstance(payload, dict) else []
    tensors = list(payload.values()) if isinstance(payload, dict) else list(payload)
    meta = [struct.pack("<BI", DICT if isinstance(payload, dict) else LIST, len(tensors))]
    segments: list[memoryview] = []
    for index, tensor in enumerate(tensors):
        meta.append(describe(tensor)[1:])
        if keys:
            name = keys[index].encode()
            meta.append(struct.pack("<I", len(name)) + name)
        segments += _padded(tensor)
    return b"".join(meta), segments, tensors


def _padded(tensor: Tensor) -> list[memoryview]:
    memory = memory_of(tensor)
    padding = memoryview(_PADDING)[len(memory) % ALIGNMENT :] if len(memory) % ALIGNMENT else _EMPTY
    return [memory, padding] if padding else [memory]


def segments_of(tensors: list[Tensor], size_bytes: int) -> list[memoryview]:
    """Return the memory of contiguous tensors that are one payload, with its padding, as ``pack`` would copy it."""
    if len(tensors) == 1 and tensors[0].nbytes == size_bytes:
        return [memory_of(tensors[0])]
    return [segment for tensor in tensors for segment in _padded(tensor)]


def pack(tensors: list[Tensor], size_bytes: int) -> Tensor:
    """Return contiguous tensors as one payload, each aligned as a ``Layout`` expects it; ``[size_bytes]`` uint8."""
    payload = tensors[0].new_empty(size_bytes, dtype=torch.uint8)
    offset = 0
    for tensor in tensors:
        size = tensor.nbytes
        payload[offset : offset + size].copy_(as_bytes(tensor))
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    return payload


def as_bytes(tensor: Tensor) -> Tensor:
    """Return the memory of a contiguous tensor as ``[nbytes]`` uint8."""
    # A view of one element may have any stride, which a view of another dtype would trip over.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def parse_layout(meta: bytes, size_bytes: int) -> Layout:
    """Parse a description; raises ProtocolError unless it describes exactly ``size_bytes`` of payload."""
    layout = _parse_short(meta) if len(meta) <= SHORT_BYTES else _parse(meta)
    if layout.size_bytes != size_bytes:
        raise ProtocolError(f"the description says {layout.size_bytes} bytes, the frame {size_bytes}")
    return layout


@lru_cache(maxsize=1024)
def _parse_short(meta: bytes) -> Layout:
    return _parse(meta)


def _parse(meta: bytes) -> Layout:
    try:
        layout, end = _parse_payload(meta)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(f"bad tensor description: {error}") from error
    if end != len(meta):
        raise ProtocolError(f"bad tensor description: {end} of {len(meta)} bytes make sense")
    return layout


def _parse_payload(meta: bytes) -> tuple[Layout, int]:
    """Return the layout and where its description ends, which may be behind the end of ``meta``."""
    structure = meta[0]
    if structure == SINGLE:
        dtype, shape, position = _parse_tensor(meta, 1)
        return Layout(SINGLE, [], [dtype], [shape], [0], _size(dtype, shape)), position
    if structure not in (LIST, DICT):
        raise ProtocolError(f"unknown payload structure {structure}")
    (num_tensors,) = struct.unpack_from("<I", meta, 1)
    position, offset = 5, 0
    layout = Layout(structure, [], [], [], [], 0)
    for _ in range(num_tensors):
        dtype, shape, position = _parse_tensor(meta, position)
        if structure == DICT:
            (length,) = struct.unpack_from("<I", meta, position)
            layout.keys.append(meta[position + 4 : position + 4 + length].decode())
            position += 4 + length
        layout.dtypes.append(dtype)
        layout.shapes.append(shape)
        layout.offsets.append(offset)
        offset += -(-_size(dtype, shape) // ALIGNMENT) * ALIGNMENT
    return layout._replace(size_bytes=offset), position


def _parse_tensor(meta: bytes, position: int) -> tuple[torch.dtype, tuple[int, ...], int]:
    code, num_dims = meta[position], meta[position + 1]
    if code >= len(DTYPES):
        raise ProtocolError(f"unknown dtype code {code}")
    shape = struct.unpack_from(f"<{num_dims}Q", meta, position + 2)
    if math.prod(max(extent, 1) for extent in shape) > MAX_NUMEL:
        raise ProtocolError(f"a shape that no tensor has: {list(shape)}")
    return DTYPES[code], shape, position + 2 + 8 * num_dims


@lru_cache(maxsize=1024)
def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of a contiguous tensor."""
    return tuple(math.prod(max(extent, 1) for extent in shape[i + 1 :]) for i in range(len(shape)))


def _size(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    return size


def describe_text(meta: bytes) -> str:
    """Return a description for people: ``float32[2, 3]``, or what a list or dict holds."""
    layout = _parse(meta)
    texts = [
        f"{str(dtype).removeprefix('torch.')}{list(shape)}"
        for dtype, shape in zip(layout.dtypes, layout.shapes, strict=True)
    ]
    if layout.structure == SINGLE:
        return texts[0]
    kind = "a dict" if layout.structure == DICT else "a list"
    shown = ", ".join(texts[:4]) + (", …" if len(texts) > 4 else "")
    return f"{kind} of {len(texts)} tensors ({shown})"
