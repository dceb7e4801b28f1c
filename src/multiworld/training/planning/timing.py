"""What a template's stages take on given nodes, and what a step takes then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from . import simulation
from .arrays import Floats
from .nodes import Node
from .profile import Profile
from .simulation import Timed
from .template import Schedule, Template
from .times.pipelines import Pipelines

STEADY = 6


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

    def curve_s(self, up_to: int) -> Floats:
        """Return what steps with 0, 1, ..., ``up_to`` micro-batches take, ascending.

        With more than ``STEADY`` micro-batches for each node, we take it that the schedule repeats itself.
        """
        num_nodes = self.template.num_nodes
        known = min(up_to, STEADY * num_nodes)
        times_s = np.zeros(up_to + 1)
        times_s[1 : known + 1] = [self.iteration_s(each) for each in range(1, known + 1)]
        for count in range(known + 1, up_to + 1):
            times_s[count] = times_s[count - num_nodes] + times_s[known] - times_s[known - num_nodes]
        return np.maximum.accumulate(times_s)


def pipelines_of(timings: Sequence[Timing]) -> Pipelines:
    """Return what stages take as arrays, for exact times of all of them at once; not for the interleaved schedule."""
    shape = (max(each.template.num_stages for each in timings), len(timings))
    times_s = {name: np.zeros(shape) for name in ("forward_s", "backward_s", "weights_s", "transfers_s")}
    put_off = np.zeros(shape, np.int64)
    limits = np.empty(shape, np.int64)
    for column, timing in enumerate(timings):
        template, ahead = timing.template, np.arange(shape[0], 0, -1)
        most, begin = template.max_in_flight[0], shape[0] - template.num_stages
        limits[:, column] = ahead if most >= template.num_stages else np.minimum(ahead, most)
        times_s["forward_s"][begin:, column] = timing.forward_s
        times_s["backward_s"][begin:, column] = timing.backward_s
        times_s["transfers_s"][begin:-1, column] = timing.transfers_s
        if template.schedule is Schedule.ZERO_BUBBLE:
            times_s["weights_s"][begin:, column] = timing.weight_backward_s
            room = np.minimum(most, template.num_stages) - limits[begin:, column]
            put_off[begin:, column] = np.minimum(np.arange(template.num_stages), room)
    times_s["backward_s"] -= times_s["weights_s"]
    return Pipelines(limits=limits, put_off=put_off, **times_s)
