"""What each layer of a model costs: measured once, and all that planning knows of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, kw_only=True)
class LayerCost:
    """One layer, for one micro-batch. A layer is what a cut never divides.

    ``weight_backward_s``: the part of ``backward_s`` that makes the gradients of weights, which a schedule with a split
    backward may put off. ``state_bytes``: parameters, gradients and the optimizer's state, held all the time.
    ``move_bytes``: what another node needs to go on with this layer: parameters and the optimizer's state.
    ``activation_bytes``: held from a micro-batch's forward to its backward. ``put_off_bytes``: held from then to the
    gradients of weights, if a backward is split. ``output_bytes``: sent to the next layer.
    """

    name: str
    forward_s: float
    backward_s: float
    weight_backward_s: float = 0.0
    state_bytes: int = 0
    move_bytes: int = 0
    activation_bytes: int = 0
    put_off_bytes: int = 0
    output_bytes: int = 0

    @property
    def work_s(self) -> float:
        return self.forward_s + self.backward_s

    def shortest(self, other: LayerCost) -> LayerCost:
        """Return the shorter times of both: of the forward, the whole backward, and the backward for the inputs."""
        backward_s = min(self.backward_s, other.backward_s)
        inputs_s = min(each.backward_s - each.weight_backward_s for each in (self, other))
        return replace(
            self,
            forward_s=min(self.forward_s, other.forward_s),
            backward_s=backward_s,
            weight_backward_s=max(backward_s - inputs_s, 0.0),
        )


@dataclass(frozen=True, kw_only=True)
class Profile:
    """``layers``: on one device, in the order in which they run. ``sharded``: the same layers on 2, 4, ... devices of
    one node, as far as that was measured; bytes there are those of one device.

    ``micro_batch``: samples of a micro-batch. ``latency_s``, ``bytes_per_s``: of a transfer between two stages.
    """

    model: str
    micro_batch: int
    layers: tuple[LayerCost, ...]
    sharded: Mapping[int, tuple[LayerCost, ...]] = field(default_factory=dict)
    latency_s: float = 0.0
    bytes_per_s: float = float("inf")

    def __post_init__(self) -> None:
        if not self.layers:
            raise ValueError(f"the profile of {self.model!r} has no layers")
        for devices, layers in self.sharded.items():
            if [each.name for each in layers] != [each.name for each in self.layers]:
                raise ValueError(
                    f"the profile of {self.model!r} has {len(self.layers)} layers on one device and other layers on "
                    f"{devices} devices"
                )

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def shortest(self, other: Profile) -> Profile:
        """Return this profile with the shorter times of both, of the layers on one device."""
        return replace(self, layers=tuple(a.shortest(b) for a, b in zip(self.layers, other.layers, strict=True)))

    @property
    def split(self) -> Profile:
        """This profile with the activations of a split backward: a micro-batch holds the most of both until it ends."""

        def held(layers: tuple[LayerCost, ...]) -> tuple[LayerCost, ...]:
            return tuple(
                replace(each, activation_bytes=max(each.activation_bytes, each.put_off_bytes)) for each in layers
            )

        sharded = {devices: held(layers) for devices, layers in self.sharded.items()}
        return replace(self, layers=held(self.layers), sharded=sharded)

    def on(self, devices: int) -> tuple[LayerCost, ...]:
        """Return the layers on so many devices of one node. Raises KeyError if that was not measured."""
        return self.layers if devices == 1 else self.sharded[devices]

    def transfer_s(self, last_layer: int) -> float:
        """Return the time from the end of a layer until its output is at the next stage, one way."""
        return self.latency_s + self.layers[last_layer].output_bytes / self.bytes_per_s
