"""Cuts a model into a chain of layers that can be trained in several processes."""

from .automatic import layers_of
from .batches import target_of
from .by_hand import layers_by_hand
from .layer import Crossing, LayeredModel, ModelLayer

__all__ = ["Crossing", "LayeredModel", "ModelLayer", "layers_by_hand", "layers_of", "target_of"]
