"""Cuts a model into stages of about equal cost, by what its layers were measured to cost."""

from .cut import Part, cut, cut_parts, profile, stages_of
from .partition import LayerCost, Partition, partition

__all__ = ["LayerCost", "Part", "Partition", "cut", "cut_parts", "partition", "profile", "stages_of"]
