"""Templates whose times a test chooses; the layers are divided evenly."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np

from multiworld.training.planning.arrays import Floats
from multiworld.training.planning.nodes import Node
from multiworld.training.planning.profile import LayerCost, Profile
from multiworld.training.planning.template import Stage, Template


class FakeTemplates:
    """``curves_s``: for each size, what steps with 1, 2, ... micro-batches take."""

    def __init__(
        self, curves_s: Mapping[int, Sequence[float]], *, num_layers: int = 24, move_bytes: int = 1000
    ) -> None:
        self.sizes = tuple(sorted(curves_s))
        self.smallest = self.sizes[0]
        self._curves_s = curves_s
        self.node = Node()
        layer = LayerCost(name="block", forward_s=1.0, backward_s=2.0, weight_backward_s=1.0, move_bytes=move_bytes)
        self.profile = Profile(model="fake", micro_batch=4, layers=(layer,) * num_layers)

    def template(self, size: int) -> Template:
        cuts = [round(index * self.profile.num_layers / size) for index in range(size + 1)]
        return Template(
            num_nodes=size,
            stages=tuple(Stage(first=cuts[node], end=cuts[node + 1], node=node) for node in range(size)),
            num_micro_batches=4 * size,
            iteration_s=0.0,
            max_in_flight=tuple(size - node for node in range(size)),
        )

    def iterations_s(self, size: int, up_to: int) -> Floats:
        return np.array([0.0, *self._curves_s[size]])


def random_templates(rng: random.Random, sizes: Sequence[int], up_to: int, num_layers: int = 24) -> FakeTemplates:
    """Return some whose times grow unevenly: larger pipelines are mostly faster."""
    curves_s = {}
    for size in sizes:
        total_s = rng.uniform(0, 3)
        curves_s[size] = [
            total_s := total_s + rng.choice((0.0, 0.5, 1.0, rng.random())) * 6 / size for _ in range(up_to)
        ]
    return FakeTemplates(curves_s, num_layers=num_layers)


def regular_templates(sizes: Sequence[int], up_to: int, num_layers: int = 24) -> FakeTemplates:
    """Return some with 1F1B's time for equal stages."""
    return FakeTemplates(
        {size: [(count + size - 1) * 3.0 * num_layers / size for count in range(1, up_to + 1)] for size in sizes},
        num_layers=num_layers,
    )
