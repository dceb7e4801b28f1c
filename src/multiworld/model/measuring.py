"""Runs a traced model on its example, and measures the time and the result of each operation."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import fx

from ..channel.payload.tensors import CODES
from .tracing.traced import Traced


@dataclass(frozen=True)
class Measured:
    """The time and the result of one operation. ``shape``: None unless the result is one tensor that can be sent.

    ``memory``: the address of the result's memory. Tensors that live at the same time have equal addresses only if they
    share memory.
    """

    seconds: float
    shape: tuple[int, ...] | None
    size_bytes: int
    memory: int = 0


class _Stopwatch(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, on_gpu: bool) -> None:
        super().__init__(module)
        self._on_gpu = on_gpu
        self.seconds: dict[fx.Node, list[float]] = defaultdict(list)
        self.values: dict[fx.Node, tuple[tuple[int, ...] | None, int, int]] = {}

    def run_node(self, n: fx.Node) -> Any:
        started = time.perf_counter()
        result = super().run_node(n)
        if self._on_gpu:
            torch.cuda.synchronize()
        self.seconds[n].append(time.perf_counter() - started)
        if can_be_sent(result):
            memory = result.untyped_storage().data_ptr()
            self.values[n] = tuple(result.shape), result.numel() * result.element_size(), memory
        else:
            self.values[n] = None, 0, 0
        return result


def measure(module: fx.GraphModule, inputs: Sequence[torch.Tensor], repeats: int) -> dict[fx.Node, Measured]:
    """Return the shortest time of ``repeats`` runs for each operation, after one run that is not counted.

    The shortest: other load on the machine can only add time. A stall in most of the runs would move a median.
    """
    watch = _Stopwatch(module, any(value.is_cuda for value in inputs))
    with torch.no_grad():
        for run in range(repeats + 1):
            if run == 1:
                watch.seconds.clear()
            watch.run(*(value.clone() for value in inputs), enable_io_processing=False)
    return {node: Measured(min(watch.seconds[node]), *watch.values[node]) for node in module.graph.nodes}


def can_be_sent(value: object) -> TypeGuard[torch.Tensor]:
    """Return whether a value is a tensor that can be sent: not quantized, sparse or nested."""
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and not value.is_nested
        and value.dtype in CODES
    )


def inputs_of(traced: Traced) -> list[torch.Tensor]:
    """Return the example's tensors in the order of the graph's inputs."""
    places = [node for node in traced.module.graph.nodes if node.op == "placeholder"]
    return [traced.example.values[str(node.target)] for node in places]
