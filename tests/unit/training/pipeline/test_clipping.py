"""The norm of gradients that several members have."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from multiworld.training.pipeline.accumulating import Accumulation
from multiworld.training.pipeline.clipping import clip, norm_of, own_squares
from multiworld.training.pipeline.contents import Use
from multiworld.training.pipeline.owners import Owned


def accumulation(owners: tuple[int, ...], **gradients: list[float]) -> Accumulation:
    """Return one whose reduced gradients are these."""
    leaves = {name: nn.Parameter(torch.zeros(len(each))) for name, each in gradients.items()}
    owned = Owned(owners=owners, computing=owners, uses=tuple(leaves), buffers=())
    made = Accumulation(owned, None, [(0,)], leaves, {}, [], num_micro_batches=1, exact=False)
    for name, view in made.reduced_of_uses().items():
        view.copy_(torch.tensor(gradients[name]))
    return made


def use(parameter: str) -> Use:
    return Use(parameter, nn.Parameter(torch.zeros(1)), (0,), (0,))


@pytest.mark.parametrize("exact", [True, False])
def test_each_parameter_counts_once_with_the_sum_of_its_uses(exact: bool) -> None:
    uses = {"w": use("w"), "w@2": use("w"), "v": use("v")}
    mine = [accumulation((0, 1), w=[3.0], v=[2.0]), accumulation((0, 1), **{"w@2": [1.0]})]
    others = [accumulation((1, 2), u=[4.0])]
    first = own_squares([*mine, *others], {**uses, "u": use("u")}, 0, exact=exact)
    assert math.fsum(first) == pytest.approx(4.0**2 + 2.0**2)  # the first owner of u answers for it
    assert len(first) == (2 if exact else 1)
    second = own_squares(others, {"u": use("u")}, 1, exact=exact)
    assert norm_of([first, second, ()], 2) == pytest.approx(6.0 / 2)


def test_the_norm_has_the_same_bits_however_the_uses_are_divided() -> None:
    uses = {"w": use("w"), "w@1": use("w"), "w@2": use("w")}
    parts = [accumulation((0, 1), **{name: [value]}) for name, value in zip(uses, (1e8, 1.0, -1e8), strict=True)]
    assert own_squares(parts, uses, 0, exact=True) == own_squares(parts[::-1], uses, 0, exact=True) == (0.0,)
    assert own_squares([parts[2], parts[0], parts[1]], uses, 0, exact=True) == (0.0,)


def test_gradients_are_scaled_if_their_norm_is_larger() -> None:
    gradients = [torch.tensor([3.0]), torch.tensor([4.0])]
    clip(gradients, 5.0, 10.0)
    assert [each.item() for each in gradients] == [3.0, 4.0]
    clip(gradients, 5.0, 1.0)
    assert [each.item() for each in gradients] == pytest.approx([0.6, 0.8], rel=1e-5)
    clip(gradients, math.inf, 1.0)
    assert [each.item() for each in gradients] == pytest.approx([0.6, 0.8], rel=1e-5)
