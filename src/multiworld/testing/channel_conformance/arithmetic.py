"""What a reduction must give, and how far a right result may be from it: whoever adds floats in another order, or keeps
more digits meanwhile, is right as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...channel.collectives import check_reduce_op, reduce_op_name
from ..samples import COMPLEX, FLOATS, OPS, PERIOD, REDUCIBLE, difference, premultiplied_sum, reduced, repeated

FACTOR = 0.375


class Reduction:
    """A reduce operation on elements of one type."""

    def __init__(self, name: str, op: Any, dtype: torch.dtype) -> None:
        self.name, self.op, self.dtype = name, op, dtype

    def __str__(self) -> str:
        return f"{self.name} of {self.dtype}"

    @property
    def makes_sense(self) -> bool:
        """Whether the type has it at all; if not, the world refuses it."""
        try:
            check_reduce_op(self.op, self.dtype)
        except TypeError:
            return False
        return True

    def sample(self, numel: int, seed: int) -> Tensor:
        """Return elements of about 1, of both signs; integers of all sizes."""
        return repeated(self._draw(min(numel, PERIOD), torch.Generator().manual_seed(seed)), numel)

    def _draw(self, numel: int, generator: torch.Generator) -> Tensor:
        if self.dtype in COMPLEX:
            return torch.randn(numel, generator=generator, dtype=torch.complex128).to(self.dtype)
        if self.dtype in FLOATS:
            return torch.randn(numel, generator=generator, dtype=torch.float64).to(self.dtype)
        if self.dtype is torch.bool:
            return torch.randint(0, 2, (numel,), generator=generator).bool()
        size_bytes = numel * self.dtype.itemsize
        return torch.randint(0, 256, (size_bytes,), dtype=torch.uint8, generator=generator).view(self.dtype)

    def wrong(self, found: Tensor, inputs: Sequence[Tensor]) -> str:
        """Say what is wrong with a result of these inputs, of all ranks; empty if nothing is."""
        if self.dtype not in (*FLOATS, *COMPLEX) or self.name in ("MIN", "MAX"):
            return difference(found, reduced(inputs, self.op))
        exact, error = self._exact(inputs)
        distance = (found.to(exact.dtype) - exact).abs()
        far = ~(distance <= error)  # a NaN is far, too
        if not bool(far.any()):
            return ""
        at = int(far.nonzero()[0])
        return (
            f"{int(far.sum())} of {found.numel()} elements are wrong: element {at} is {found[at].item()} instead of "
            f"{exact[at].item()}, and may be {error[at].item():.3g} away"
        )

    def _exact(self, inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the result in double precision, and what each rounding of one more operation may add up to."""
        wide = torch.complex128 if self.dtype in COMPLEX else torch.float64
        rows = torch.stack([tensor.to(wide) for tensor in inputs])
        num_steps = len(inputs) + 1
        if self.name == "PRODUCT":
            exact, scale, num_steps = rows.prod(0), rows.abs().prod(0), 4 * num_steps
        else:
            factor = {"AVG": 1 / len(inputs), "PREMUL_SUM": FACTOR}.get(self.name, 1.0)
            exact, scale = rows.sum(0) * factor, rows.abs().sum(0) * factor
        info = torch.finfo(self.dtype)
        return exact, num_steps * (info.eps * scale + info.smallest_normal)


def reductions() -> list[Reduction]:
    """Return every reduce operation of torch with every type, also those that make no sense."""
    named = [(reduce_op_name(op), op) for op in OPS]
    named.append(("PREMUL_SUM", premultiplied_sum(FACTOR)))
    return [Reduction(name, op, dtype) for name, op in named for dtype in REDUCIBLE]
