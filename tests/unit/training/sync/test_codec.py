"""How payloads are written, and what is lost of them."""

from __future__ import annotations

import pytest
import torch

from multiworld.training.sync.codec import BLOCK, Bfloat16, Codec, Int8


@pytest.mark.parametrize(("codec", "size_bytes"), [(Bfloat16(), 2 * BLOCK), (Int8(), BLOCK + 4)])
def test_a_block_has_so_many_bytes(codec: Codec, size_bytes: int) -> None:
    packed = codec.encode(torch.randn(3 * BLOCK))
    assert packed.dtype == torch.uint8
    assert packed.numel() == 3 * size_bytes


def test_int8_keeps_each_element_within_half_a_step_of_its_block() -> None:
    flat = torch.cat([torch.randn(BLOCK), 1000 * torch.randn(BLOCK), torch.zeros(BLOCK)])
    back = Int8().decode(Int8().encode(flat))
    for block, given in zip(back.view(-1, BLOCK), flat.view(-1, BLOCK), strict=True):
        assert (block - given).abs().max() <= given.abs().max() / 254 * 1.001
    assert torch.equal(back[2 * BLOCK :], torch.zeros(BLOCK))


def test_int8_is_exact_for_what_has_no_more_than_255_values() -> None:
    flat = torch.arange(-127, 129, dtype=torch.float32).clamp(max=127)
    assert torch.equal(Int8().decode(Int8().encode(flat)), flat)


def test_bfloat16_keeps_8_bits_of_each_element() -> None:
    flat = torch.randn(BLOCK, dtype=torch.float64) * 1e20
    torch.testing.assert_close(Bfloat16().decode(Bfloat16().encode(flat)), flat.float(), rtol=1 / 256, atol=0)


@pytest.mark.parametrize("codec", [Bfloat16(), Int8()])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_still_seen(codec: Codec, bad: float) -> None:
    flat = torch.ones(2 * BLOCK)
    flat[BLOCK + 3] = bad
    back = codec.decode(codec.encode(flat))
    assert not back[BLOCK:].isfinite().all()
    torch.testing.assert_close(back[:BLOCK], flat[:BLOCK], rtol=1e-6, atol=0)
