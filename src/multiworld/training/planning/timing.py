"""What a template's stages take on given nodes, and what a step takes then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from . import simulation
from .nodes import Node
from .profile import Profile
from .simulation import Timed
from .template import Template


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Of one micro-batch, by stage, in seconds. ``transfers_s``: from each stage to the next, one way."""

    template: Template
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    weight_backward_s: tuple[float, ...]
    transfers_s: tuple[float, ...]

    @classmethod
    def of(cls, profile: Profile, nodes: Sequence[Node], template: Template) -> Timing:
        """Return those of a template on these nodes, in order. Within a node, transfers take no time."""
        forward_s, backward_s, weight_s = [], [], []
        for stage in template.stages:
            layers, speed = profile.on(stage.devices)[stage.first : stage.end], nodes[stage.node].speed
            forward_s.append(sum(each.forward_s for each in layers) / speed)
            again_s = forward_s[-1] if template.recompute else 0.0
            backward_s.append(sum(each.backward_s for each in layers) / speed + again_s)
            weight_s.append(sum(each.weight_backward_s for each in layers) / speed)
        return cls(
            template=template,
            forward_s=tuple(forward_s),
            backward_s=tuple(backward_s),
            weight_backward_s=tuple(weight_s),
            transfers_s=tuple(
                profile.transfer_s(here.end - 1) if here.node != there.node else 0.0
                for here, there in pairwise(template.stages)
            ),
        )

    def timeline(self, num_micro_batches: int) -> list[Timed]:
        """Return all operations of a step, with their times."""
        return simulation.timeline(
            self.forward_s,
            self.backward_s,
            num_micro_batches,
            transfers_s=self.transfers_s,
            max_in_flight=self.template.max_in_flight,
            schedule=self.template.schedule,
            weight_backward_s=self.weight_backward_s,
            num_ranks=self.template.num_nodes,
        )

    def iteration_s(self, num_micro_batches: int) -> float:
        """Return what a step takes, exactly."""
        return max(each.end_s for each in self.timeline(num_micro_batches))
