"""Decides whether a model can be cut and its answers sent, and says why not."""

from .answers import problem_of
from .kinds import check_kind
from .purity import ImpureError, check_pure

__all__ = ["ImpureError", "check_kind", "check_pure", "problem_of"]
