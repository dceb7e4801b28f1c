"""Decides whether a model can be cut and its answers sent, and says why not."""

from .answers import problem_of
from .kinds import check_kind, check_values
from .purity import ImpureError, check_pure

__all__ = ["ImpureError", "check_kind", "check_pure", "check_values", "problem_of"]
