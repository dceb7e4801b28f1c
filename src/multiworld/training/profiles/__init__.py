"""Measures what the layers of a model cost, and keeps the results in a cache."""

from .cache import cached_profile, default_folder
from .keys import key_of
from .measuring import measure_layers

__all__ = ["cached_profile", "default_folder", "key_of", "measure_layers"]
