"""How many nodes hold a model, and what is said if there are fewer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import LayerTooLargeError, ModelTooLargeError
from .nodes import Node
from .profile import Profile
from .search.making import layouts
from .search.segments import Segments


def smallest_pipeline(profile: Profile, node: Node, num_nodes: int) -> int:
    """Return how many such nodes hold the model with one micro-batch in flight.

    Raises ModelTooLargeError if there are fewer, and LayerTooLargeError if no number would do.
    """
    needed = []
    for devices, per_node in layouts(profile, node.devices):
        num_stages = _stages_needed(Segments.of(profile, devices), node)
        count = -(-num_stages // per_node)
        if 0 < count * per_node <= profile.num_layers:
            needed.append(count)
    if not needed:
        raise _layer_too_large(profile, node)
    if min(needed) > num_nodes:
        raise model_too_large(profile, [node] * num_nodes, min(needed))
    return min(needed)


def model_too_large(profile: Profile, nodes: Sequence[Node], smallest: int) -> ModelTooLargeError:
    """Return the error that says so. ``smallest``: how many nodes would do."""
    whole = Segments.of(profile).needed_bytes(0, profile.num_layers, 1, recompute=False)
    room = sum((each.memory_bytes or 0) * each.devices for each in nodes)
    return ModelTooLargeError(profile.model, int(whole), len(nodes), room // len(nodes), smallest)


def _stages_needed(segments: Segments, node: Node) -> int:
    """Return the least number of stages; 0 if a layer does not fit."""
    memory_bytes = np.inf if node.memory_bytes is None else float(node.memory_bytes)
    fits = segments.fits(1, memory_bytes, recompute=False)
    first, count = 0, 0
    while first < segments.num_layers:
        if not fits[first].any():
            return 0
        first, count = int(np.flatnonzero(fits[first])[-1]), count + 1
    return count


def _layer_too_large(profile: Profile, node: Node) -> LayerTooLargeError:
    """Return the error for the largest layer, on as many devices as was measured."""
    devices = max(devices for devices, _ in layouts(profile, node.devices))
    largest = max(profile.on(devices), key=lambda each: each.state_bytes + each.activation_bytes)
    needed = largest.state_bytes + largest.activation_bytes
    return LayerTooLargeError(profile.model, largest.name, needed, node.memory_bytes or 0)
