"""What each run of consecutive layers costs as one stage: time, memory, transfers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .nodes import Node
from .profile import Profile

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Segments:
    """Sums over the layers before each: ``x[end] - x[first]`` is that of a stage. Arrays have shape [num_layers + 1].

    ``input_bytes``, ``transfer_s``: [num_layers + 1], of what crosses the cut before each layer.
    ``memory_bytes``: of a device; infinite if there is no limit.
    """

    forward_s: Floats
    backward_s: Floats
    weight_s: Floats
    state_bytes: Floats
    activation_bytes: Floats
    input_bytes: Floats
    transfer_s: Floats
    memory_bytes: float
    recompute: bool

    @classmethod
    def of(cls, profile: Profile, node: Node, devices: int = 1, recompute: bool = False) -> Segments:
        """Return those of stages on so many devices of a node. ``recompute``: backward begins with a forward."""
        layers = profile.on(devices)

        def sums(name: str) -> Floats:
            return np.concatenate(([0.0], np.cumsum([getattr(each, name) for each in layers])))

        forward_s = sums("forward_s") / node.speed
        outputs = np.array([each.output_bytes for each in layers], float)
        transfers = np.array([profile.transfer_s(each) for each in range(profile.num_layers)])
        return cls(
            forward_s=forward_s,
            backward_s=sums("backward_s") / node.speed + (forward_s if recompute else 0.0),
            weight_s=sums("weight_backward_s") / node.speed,
            state_bytes=sums("state_bytes"),
            activation_bytes=sums("activation_bytes"),
            input_bytes=np.concatenate((outputs[:1], outputs)),
            transfer_s=np.concatenate(([0.0], transfers[:-1], [0.0])),
            memory_bytes=float("inf") if node.memory_bytes is None else float(node.memory_bytes),
            recompute=recompute,
        )

    @property
    def num_layers(self) -> int:
        return len(self.forward_s) - 1

    def work_s(self) -> Floats:
        """Return forward and backward of each segment, [num_layers + 1, num_layers + 1], by first and end."""
        return self.between(self.forward_s + self.backward_s)

    @staticmethod
    def between(sums: Floats) -> Floats:
        return sums[None, :] - sums[:, None]

    def needed_bytes(self, first: Any, end: Any, in_flight: Any) -> Any:
        """Return the memory of a device for layers ``first`` to ``end - 1`` and so many micro-batches in flight."""
        state = self.state_bytes[end] - self.state_bytes[first]
        activations = self.activation_bytes[end] - self.activation_bytes[first]
        if self.recompute:  # inputs of all that are in flight, and all activations of the one that is computed again
            return state + activations + self.input_bytes[first] * in_flight
        return state + activations * in_flight

    def fits(self, in_flight: int) -> Bools:
        """Return which segments fit, [num_layers + 1, num_layers + 1]; an empty one never does."""
        first, end = np.ix_(np.arange(self.num_layers + 1), np.arange(self.num_layers + 1))
        fits: Bools = (end > first) & (self.needed_bytes(first, end, in_flight) <= self.memory_bytes)
        return fits
