"""Compute digests of tensors that are equal on all replicas: 64 bits of each piece, a few pieces in each step.

A digest is a sum of the raw words, each mixed and multiplied by an odd weight of its position, modulo 2**64. One
changed bit always changes it, because an odd weight has an inverse; other changes do, but for one case in some 2**62.
It is no protection against somebody who wants two tensors to look alike.

All pieces are read once in ``every`` steps, a share of the bytes in each step, so no step is longer than the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
from torch import Tensor

from ..recovery.state_parts import bytes_of

CHUNK_WORDS: Final = 1 << 15  # 256 kB of data and as much of weights: they stay in a core's cache
_WORD_BYTES: Final = 8
_SEED: Final = 0x6D77
_STEP: Final = 0x9E3779B97F4A7C15  # odd; the weight of each chunk is the one before times this
_MODULUS: Final = 1 << 64
MAX_PIECE_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class Piece:
    """A range of bytes of one tensor."""

    name: str
    start: int
    stop: int


def digests(tensors: Mapping[str, Tensor], pieces: Sequence[Piece]) -> dict[str, str]:
    """Return a digest of 16 hexadecimal digits of each piece, by its name, with its range if it is no whole tensor.

    The tensors may be on any device. One that lies scattered in memory is copied first. Synchronises with a GPU once.
    """
    sums = [_chunk_sums(bytes_of(tensors[piece.name])[piece.start : piece.stop]) for piece in pieces]
    found: dict[str, str] = {}
    on_host = _to_host(sums)
    for piece, chunks in zip(pieces, on_host, strict=True):
        tensor = tensors[piece.name]
        is_whole = piece.stop - piece.start == tensor.nbytes
        label = piece.name if is_whole else f"{piece.name}[{piece.start}:{piece.stop}]"
        found[label] = f"{_joined(chunks):016x}"
    return found


def digest(tensor: Tensor) -> str:
    """Return the digest of one whole tensor."""
    return digests({"": tensor}, [Piece("", 0, tensor.nbytes)])[""]


def schedule(sizes_bytes: Mapping[str, int], every: int) -> list[list[Piece]]:
    """Deal all bytes to ``every`` steps, in order and evenly. Pure. A large tensor is cut at whole chunks."""
    if every < 1:
        raise ValueError(f"every must be at least 1, not {every}")
    total = sum(sizes_bytes.values())
    limit = min(MAX_PIECE_BYTES, max(-(-total // every), 1))
    chunk = CHUNK_WORDS * _WORD_BYTES
    limit = max(chunk, limit // chunk * chunk)
    pieces = [piece for name, size in sizes_bytes.items() for piece in _cut(name, size, limit)]
    shares: list[list[Piece]] = [[] for _ in range(every)]
    done = 0
    for piece in pieces:  # the middle of a piece says where it belongs
        middle = done + (piece.stop - piece.start) // 2
        shares[min(every - 1, middle * every // max(total, 1))].append(piece)
        done += piece.stop - piece.start
    return shares


def _cut(name: str, size: int, limit: int) -> Iterable[Piece]:
    return [Piece(name, start, min(size, start + limit)) for start in range(0, size, limit)]


def _chunk_sums(data: Tensor) -> Tensor:
    """``[num_bytes]`` → ``[num_chunks]``, int64 on the data's device."""
    whole = data.numel() // _WORD_BYTES * _WORD_BYTES
    words = _words(data[:whole])
    scratch = words.new_empty(min(CHUNK_WORDS, max(words.numel(), 1)))  # one for all: fresh memory costs more than sums
    sums = [_weighted(words[start : start + CHUNK_WORDS], scratch) for start in range(0, words.numel(), CHUNK_WORDS)]
    if whole < data.numel():
        rest = torch.zeros(_WORD_BYTES, dtype=torch.uint8, device=data.device)
        rest[: data.numel() - whole] = data[whole:]
        sums.append(_weighted(rest.view(torch.int64), scratch))
    return torch.stack(sums) if sums else torch.zeros(1, dtype=torch.int64, device=data.device)


def _words(data: Tensor) -> Tensor:
    """View bytes as words. A slice that begins at no whole word has to be copied."""
    if data.storage_offset() % _WORD_BYTES or data.data_ptr() % _WORD_BYTES:
        data = data.clone()
    return data.view(torch.int64)


def _weighted(words: Tensor, scratch: Tensor) -> Tensor:
    weights = _weights(words.device)[: words.numel()]
    mixed = torch.bitwise_right_shift(words, 32, out=scratch[: words.numel()])
    mixed.add_(words)  # not the words: two changed sign bits, at the top of two words, would make up for each other
    if words.device.type == "cpu":
        return torch.dot(mixed, weights)
    return mixed.mul_(weights).sum()  # there is no dot product of integers on a GPU


@cache
def _weights(device: torch.device) -> Tensor:
    """Return odd weights, the same on every device and with every version of torch's generators."""
    state, weights = _SEED, []
    for _ in range(CHUNK_WORDS):  # splitmix64
        state = (state + _STEP) % _MODULUS
        mixed = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % _MODULUS
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % _MODULUS
        weights.append((mixed ^ (mixed >> 31)) | 1)
    signed = [weight - _MODULUS if weight >= _MODULUS // 2 else weight for weight in weights]
    return torch.tensor(signed, dtype=torch.int64, device=device)


def _to_host(sums: Sequence[Tensor]) -> list[list[int]]:
    if not sums:
        return []
    flat: list[int] = torch.cat(list(sums)).tolist()
    split: list[list[int]] = []
    for each in sums:
        split.append(flat[: each.numel()])
        del flat[: each.numel()]
    return split


def _joined(chunks: Iterable[int]) -> int:
    joined, weight = 0, 1
    for chunk in chunks:
        joined = (joined + chunk * weight) % _MODULUS
        weight = weight * _STEP % _MODULUS
    return joined
