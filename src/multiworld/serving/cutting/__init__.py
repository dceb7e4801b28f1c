"""Cuts a model into stages of about equal cost, by what its layers were measured to cost."""

from .cut import cut, profile, stages_of
from .partition import LayerCost, Partition, partition

__all__ = ["LayerCost", "Partition", "cut", "partition", "profile", "stages_of"]
