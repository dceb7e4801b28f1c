"""A profile that nobody measured: equal layers, for planning before there is a model. Pure."""

from __future__ import annotations

from .profile import LayerCost, Profile


def uniform_profile(
    num_layers: int, *, micro_batch: int = 1, forward_s: float = 0.010, layer_bytes: int = 0, activation_bytes: int = 0
) -> Profile:
    """Return ``num_layers`` equal layers whose backward takes twice as long as their forward.

    Half of a backward makes the gradients of weights. ``layer_bytes``: of one layer's parameters in fp32; with its
    gradients and the two moments of Adam a node holds four times as much, and a move takes three times as much.
    """
    if num_layers < 1:
        raise ValueError(f"{num_layers} layers: at least 1 is needed")
    layers = tuple(
        LayerCost(
            name=f"layer{index}",
            forward_s=forward_s,
            backward_s=2 * forward_s,
            weight_backward_s=forward_s,
            state_bytes=4 * layer_bytes,
            move_bytes=3 * layer_bytes,
            activation_bytes=activation_bytes,
        )
        for index in range(num_layers)
    )
    return Profile(model="uniform", micro_batch=micro_batch, layers=layers)
