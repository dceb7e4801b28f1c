"""Builds the modules of layers from a graph that was followed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import fx, nn

from ..boundaries import Boundary, Layout
from ..part_graph import PartGraph, hold_constants
from ..structure import Structure


class Piece(fx.GraphModule):
    """A layer of a model. Its graph is that of training: of dropout and batch norm, it has no other."""

    def train(self, mode: bool = True) -> Piece:
        if not mode:
            raise RuntimeError(
                "a layer that was cut automatically has no evaluation mode: its dropout would go on. Load the "
                "parameters of all layers into the model, and evaluate that"
            )
        self.training = True  # parts that are kept whole have their own modes: a frozen batch norm stays frozen
        return self


class LastPiece(nn.Module):
    """Returns the model's own output, of the tensors that the last piece computes."""

    def __init__(self, piece: Piece, structure: Structure) -> None:
        super().__init__()
        self.piece, self._structure = piece, structure

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self._structure.fill(self.piece(*tensors))


def build_pieces(
    module: fx.GraphModule, layout: Layout, cuts: Sequence[Boundary], state: Collection[str], output: Structure
) -> list[nn.Module]:
    """Return a module for each piece between the cuts. Each takes tensors, and returns a tuple of tensors.

    Tensors cross a cut contiguous, as they do between processes, so results do not depend on which layers share one.
    """
    hold_constants(module, state)
    pieces: list[nn.Module] = []
    for before, after in zip([None, *cuts], [*cuts, None], strict=True):
        graph = _graph(layout, state, before, after)
        pieces.append(Piece(module, graph, class_name=f"Layer{len(pieces)}").train())
    assert isinstance(pieces[-1], Piece)
    pieces[-1] = LastPiece(pieces[-1], output)
    return pieces


def _graph(layout: Layout, state: Collection[str], before: Boundary | None, after: Boundary | None) -> fx.Graph:
    copy = PartGraph(state)
    inputs = [node for node in layout.nodes if node.op == "placeholder"] if before is None else list(before.tensors)
    for node in inputs:
        copy.made[node] = copy.graph.placeholder(node.name)
    for size, (tensor, dim) in (before.sizes if before else {}).items():
        copy.made[size] = copy.graph.call_function(torch.ops.aten.sym_size.int, (copy.made[tensor], dim))
    start = before.end if before else 0
    end = after.end if after else len(layout.nodes) - 1
    for node in layout.nodes[start:end]:
        if node.op != "placeholder" and node not in layout.remade and node not in layout.sizes:
            copy.make(node)
    if after is None:
        copy.graph.output(fx.map_arg(layout.nodes[-1].args[0], copy.make))
    else:
        made = [copy.make(node) for node in after.tensors]
        copy.graph.output(tuple(copy.graph.call_method("contiguous", (node,)) for node in made))
    copy.graph.lint()
    return copy.graph
