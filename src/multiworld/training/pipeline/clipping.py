"""The norm of all gradients, of which each member has some: for clipping."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from .accumulating import Accumulation
from .contents import Use

SMALL = 1e-6  # as of torch.nn.utils.clip_grad_norm_


def own_squares(
    accumulations: Sequence[Accumulation], uses: Mapping[str, Use], place: int, *, exact: bool
) -> tuple[float, ...]:
    """Return sums of squares of the gradients that this member answers for: it is their first owner.

    ``exact``: one for each parameter, so that their exact sum does not depend on who has which. ``uses``: all that this
    member holds. ``place``: its own in the team's world.
    """
    own = [each.reduced_of_uses() for each in accumulations if each.owned.owners[0] == place]
    views = {name: view for each in own for name, view in each.items()}
    gradients: dict[str, Tensor] = {}
    for name, use in uses.items():  # in the model's order: how uses are divided must not change a sum's rounding
        if name in views:
            known = gradients.get(use.parameter)
            gradients[use.parameter] = views[name] if known is None else known + views[name]
    if exact:
        return tuple(float(each.double().square().sum()) for each in gradients.values())
    norms = torch._foreach_norm(list(gradients.values())) if gradients else []
    return (float(torch.stack([each.double() for each in norms]).square().sum()),) if norms else ()


def norm_of(squares: Iterable[Sequence[float]], num_done: int) -> float:
    """Return the norm of the mean gradients of a step. ``squares``: of all members, of sums over ``num_done``."""
    return math.sqrt(math.fsum(each for of_member in squares for each in of_member)) / num_done


def clip(gradients: Iterable[Tensor], norm: float, max_norm: float) -> None:
    """Scale gradients of this norm to ``max_norm``, if they are larger. A norm that is not finite scales nothing."""
    scale = max_norm / (norm + SMALL)
    if math.isfinite(norm) and scale < 1.0:
        torch._foreach_mul_(list(gradients), scale)
