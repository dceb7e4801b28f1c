"""Finds the operations that keep the rows of requests apart, by running the example alone and among other rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from .comparing import is_close
from .measuring import can_be_sent, inputs_of
from .tracing.guards import broken
from .tracing.traced import Traced, fixed_sizes

TOLERANCE_ON_GPU = 1e-2
"""Relative to the largest value. A GPU may use another algorithm, with or without TF32, for another number of rows."""

NUMBERS_TRIED = 64
"""Up to which number of rows the guards of a model are checked."""


@dataclass(frozen=True)
class Rows:
    """``nodes``: the operations whose result has the rows in front. ``number``: of rows in the example."""

    number: int | None
    nodes: frozenset[fx.Node]


def find_rows(traced: Traced) -> Rows:
    """Return the operations whose rows do not depend on other rows; none if the model takes no other number of rows.

    Shapes do not tell: time may be in front, as in ``nn.TransformerEncoderLayer``, or each row may depend on all, as
    after ``softmax(0)``. The first dimensions of the inputs may differ: the one that most operations keep is taken.
    """
    found = [Rows(number, _nodes_with_rows(traced, number)) for number in traced.example.first_sizes]
    return max(found, key=lambda rows: len(rows.nodes), default=Rows(None, frozenset()))


def _nodes_with_rows(traced: Traced, num_rows: int) -> frozenset[fx.Node]:
    if num_rows == 0 or not _takes_any(traced, num_rows):
        return frozenset()
    try:
        with torch.no_grad():
            return _run_beside_others(traced, num_rows)
    except Exception:  # the model's own code may raise anything
        return frozenset()


def _takes_any(traced: Traced, num_rows: int) -> bool:
    """Return whether the graph holds for any number of rows."""
    shapes = [tuple(value.shape) for value in inputs_of(traced)]
    places = [node for node in traced.module.graph.nodes if node.op == "placeholder"]
    for node, shape in zip(places, shapes, strict=True):
        if shape[:1] == (num_rows,) and (fixed_sizes(node, num_rows) or [None])[0] is not None:
            return False
    return all(
        broken(traced.guards, tuple((number, *shape[1:]) if shape[:1] == (num_rows,) else shape for shape in shapes))
        is None
        for number in range(2, NUMBERS_TRIED)
    )


def _run_beside_others(traced: Traced, num_rows: int) -> frozenset[fx.Node]:
    """Run the example alone and among other rows, one operation at a time, so that few results are held at once."""
    inputs = inputs_of(traced)
    alone, among = fx.Interpreter(traced.module), fx.Interpreter(traced.module)
    alone.args_iter = iter([value.clone() for value in inputs])
    among.args_iter = iter(
        [_among_others(value) if value.shape[:1] == (num_rows,) else value.clone() for value in inputs]
    )
    found: set[fx.Node] = set()
    for node in traced.module.graph.nodes:
        for run in (alone, among):
            run.env[node] = run.run_node(node)
        if _has_rows(alone.env[node], among.env[node], num_rows):
            found.add(node)
        for used in alone.user_to_last_uses.get(node, ()):
            if not _has_rows(alone.env.pop(used), among.env.pop(used), num_rows):
                found.discard(used)  # a later operation wrote into it
    return frozenset(found)


def _among_others(value: torch.Tensor) -> torch.Tensor:
    """Return one other row, those of the example, and twice as many other rows.

    This reveals operations that mix rows with earlier or later ones, count them, pair them or reverse them.
    """
    others = other_values(value)
    return torch.cat((others[:1], value, others, others))


def other_values(value: torch.Tensor) -> torch.Tensor:
    """Return other rows. A column may hold indices of a table, so only values of the same column replace them."""
    if not value.numel() or not value.dim():
        return value
    others = value[:1].expand_as(value)
    if value.is_floating_point():
        others = torch.where((value == value.round()).all(0), others, -_larger(others, value) - others.sign())
    if torch.equal(others, value):
        others = value.flatten().roll(1).view(value.shape)
    return (value == 0).to(value.dtype) if torch.equal(others, value) else others


def _larger(others: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return rows scaled until their largest value exceeds that of all rows, so that no other row hides its effect."""
    factor = 2 * value.abs().max() / others.abs().max()
    return others * torch.where(factor.isfinite(), factor, 2)


def _has_rows(alone: Any, among: Any, num_rows: int) -> bool:
    return (
        can_be_sent(alone)
        and can_be_sent(among)
        and alone.shape[:1] == (num_rows,)
        and among.shape == (1 + 3 * num_rows, *alone.shape[1:])
        and is_close(alone, among[1 : 1 + num_rows], TOLERANCE_ON_GPU if alone.is_cuda else 0.0)
    )
