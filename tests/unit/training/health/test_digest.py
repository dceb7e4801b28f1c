"""Digests of tensors: what changes them, and how the bytes are dealt to steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from multiworld.training.health.digest import CHUNK_WORDS, Piece, digest, digests, schedule

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.bool]


def values(num: int, dtype: torch.dtype) -> Tensor:
    return torch.randint(0, 2, (num,), generator=torch.Generator().manual_seed(num)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num", [1, 3, 8, 1001])
def test_equal_tensors_have_equal_digests(dtype: torch.dtype, num: int) -> None:
    assert digest(values(num, dtype)) == digest(values(num, dtype).clone())


def test_every_single_bit_counts() -> None:
    tensor = torch.randn(9)  # 4 words and a half
    before = digest(tensor)
    raw = tensor.view(torch.int32)
    for place in range(9):
        for bit in range(32):
            mask = 1 << bit if bit < 31 else -(1 << 31)
            raw[place] ^= mask
            assert digest(tensor) != before
            raw[place] ^= mask
    assert digest(tensor) == before


@pytest.mark.parametrize("apart", [1, 2, CHUNK_WORDS, 2 * CHUNK_WORDS])
def test_two_values_that_changed_places_are_found(apart: int) -> None:
    tensor = torch.arange(5 * CHUNK_WORDS, dtype=torch.float64)
    before = digest(tensor)
    tensor[[0, apart]] = tensor[[apart, 0]]
    assert digest(tensor) != before


def test_nan_and_negative_zero_are_compared_by_their_bits() -> None:
    assert digest(torch.tensor([torch.nan])) == digest(torch.tensor([torch.nan]))
    assert digest(torch.tensor([0.0])) != digest(torch.tensor([-0.0]))


def test_a_tensor_that_lies_scattered_has_the_digest_of_its_values() -> None:
    tensor = torch.randn(6, 7)
    assert digest(tensor.t()) == digest(tensor.t().contiguous()) != digest(tensor)


def test_an_empty_tensor_and_a_scalar_have_a_digest() -> None:
    assert digest(torch.empty(0)) == "0" * 16
    assert digest(torch.tensor(1.5)) == digest(torch.tensor([1.5]))


def test_a_digest_is_the_same_in_every_process_and_release() -> None:
    assert digest(torch.arange(100_000)) == "b38f9e36b8e043fa"


def test_all_bytes_are_read_once_in_a_round_and_no_share_is_much_larger() -> None:
    sizes = {"embedding": 50_000_000, **{f"layer{number}": 1_000_000 + 4 * number for number in range(30)}, "bias": 4}
    shares = schedule(sizes, 20)
    assert len(shares) == 20
    read = [piece for share in shares for piece in share]
    for name, size in sizes.items():
        ranges = sorted((piece.start, piece.stop) for piece in read if piece.name == name)
        assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
        assert ranges[-1][1] == size
    largest = max(sum(piece.stop - piece.start for piece in share) for share in shares)
    assert largest <= 2 * sum(sizes.values()) / 20


def test_more_steps_than_tensors_leave_some_steps_without_work() -> None:
    assert sum(map(bool, schedule({"a": 8, "b": 8}, 10))) == 2
    assert schedule({}, 3) == [[], [], []]


def test_a_piece_of_a_large_tensor_is_named_with_its_bytes() -> None:
    tensor = torch.arange(CHUNK_WORDS * 2)
    half = CHUNK_WORDS * 8
    found = digests({"w": tensor}, [Piece("w", 0, half), Piece("w", half, 2 * half)])
    assert list(found) == [f"w[0:{half}]", f"w[{half}:{2 * half}]"]
    tensor[-1] += 1
    again = digests({"w": tensor}, [Piece("w", 0, half), Piece("w", half, 2 * half)])
    assert [name for name in found if again[name] != found[name]] == [f"w[{half}:{2 * half}]"]


def test_two_changed_signs_do_not_make_up_for_each_other() -> None:
    tensor = torch.arange(1.0, 9.0)
    before = digest(tensor)
    for first in range(8):
        for second in range(first):
            changed = tensor.clone()
            changed[[first, second]] *= -1
            assert digest(changed) != before


def test_no_step_or_fewer_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        schedule({"a": 4}, 0)
