"""A template: how a pipeline over a number of nodes divides the layers among its stages. It names no process."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Schedule(enum.Enum):
    """In which order a stage computes its micro-batches."""

    ONE_F_ONE_B = "1f1b"  # PipeDream-flush (Narayanan et al. 2021)
    INTERLEAVED = "interleaved"  # several chunks of layers on each node (Megatron-LM, Narayanan et al. 2021)
    ZERO_BUBBLE = "zero-bubble"  # ZB-H1: gradients of weights fill the bubbles (Qi et al. 2023)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Layers ``first`` to ``end - 1`` on ``devices`` devices of node ``node`` of the template (0-based)."""

    first: int
    end: int
    node: int
    devices: int = 1

    @property
    def num_layers(self) -> int:
        return self.end - self.first


@dataclass(frozen=True, kw_only=True)
class Template:
    """A pipeline of ``num_nodes`` nodes. Its stages cover all layers in order; no stage is on two nodes.

    ``num_micro_batches``: for how many of a step it was chosen. ``iteration_s``: what a step with so many takes,
    without the exchange of gradients. ``max_in_flight``: for each stage, how many micro-batches may be between their
    forward and their backward, or the end of it if it is split. ``recompute``: of each micro-batch in flight, a stage
    keeps its input only, and backward computes the activations of the whole stage again.
    """

    num_nodes: int
    stages: tuple[Stage, ...]
    num_micro_batches: int
    iteration_s: float
    max_in_flight: tuple[int, ...]
    schedule: Schedule = Schedule.ONE_F_ONE_B
    recompute: bool = False

    @property
    def num_stages(self) -> int:
        return len(self.stages)
