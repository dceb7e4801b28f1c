"""Cuts a model into stages of about equal cost, by what its layers were measured to cost."""

from .cut import Part, cut, cut_parts, profile
from .partition import LayerCost, Partition, partition
from .stages import batch_of, stages_of

__all__ = ["LayerCost", "Part", "Partition", "batch_of", "cut", "cut_parts", "partition", "profile", "stages_of"]
