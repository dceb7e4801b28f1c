"""What each run of consecutive layers costs as one stage: time, memory, transfers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays import Bools, Floats
from ..profile import Profile


@dataclass(frozen=True, kw_only=True)
class Segments:
    """Sums over the layers before each cut, [num_layers + 1]: ``x[end] - x[first]`` is that of a stage.

    ``input_bytes``, ``transfer_s``: of what crosses the cut before each layer. Times are those of a node of speed 1.
    """

    forward_s: Floats
    backward_s: Floats
    weight_s: Floats
    state_bytes: Floats
    activation_bytes: Floats
    input_bytes: Floats
    transfer_s: Floats

    @classmethod
    def of(cls, profile: Profile, devices: int = 1) -> Segments:
        """Return those of stages on so many devices of a node. Raises KeyError if the profile does not have that."""
        layers = profile.on(devices)
        names = ("forward_s", "backward_s", "weight_backward_s", "state_bytes", "activation_bytes", "output_bytes")
        columns = np.array([[getattr(each, name) for name in names] for each in layers], float)
        sums = np.zeros((len(names), len(layers) + 1))
        np.cumsum(columns.T, axis=1, out=sums[:, 1:])
        forward_s, backward_s, weight_s, state_bytes, activation_bytes, _ = sums
        transfer_s = np.zeros(len(layers) + 1)
        transfer_s[1:-1] = [profile.transfer_s(each) for each in range(len(layers) - 1)]
        return cls(
            forward_s=forward_s,
            backward_s=backward_s,
            weight_s=weight_s,
            state_bytes=state_bytes,
            activation_bytes=activation_bytes,
            input_bytes=np.concatenate((columns[:1, -1], columns[:, -1])),
            transfer_s=transfer_s,
        )

    @property
    def num_layers(self) -> int:
        return len(self.forward_s) - 1

    def work_s(self, *, recompute: bool) -> Floats:
        """Return forward and backward of each segment, [num_layers + 1, num_layers + 1], by first and end."""
        sums = self.forward_s * (2 if recompute else 1) + self.backward_s
        between: Floats = sums[None, :] - sums[:, None]
        return between

    def needed_bytes(self, first: Any, end: Any, in_flight: Any, *, recompute: Any) -> Any:
        """Return the memory of a device for layers ``first`` to ``end - 1`` with so many micro-batches in flight.

        All arguments may be arrays. With ``recompute``, a stage holds the inputs of all that are in flight, and the
        activations of the one that is computed again.
        """
        state = self.state_bytes[end] - self.state_bytes[first]
        activations = self.activation_bytes[end] - self.activation_bytes[first]
        again = activations + self.input_bytes[first] * in_flight
        return state + np.where(recompute, again, activations * in_flight)

    def fits(self, in_flight: int, memory_bytes: float, *, recompute: bool) -> Bools:
        """Return which segments fit, [num_layers + 1, num_layers + 1]; an empty one never does."""
        first, end = np.ix_(np.arange(self.num_layers + 1), np.arange(self.num_layers + 1))
        fits: Bools = end > first
        if memory_bytes < np.inf:
            fits &= self.needed_bytes(first, end, in_flight, recompute=recompute) <= memory_bytes
        return fits
