"""What ``multiworld serve`` is given: two trivial stages."""

from __future__ import annotations

from multiworld.serving import Pipeline, Stage

from .works import add_one, times_two

__all__ = ["pipeline"]

pipeline = Pipeline([Stage("add", add_one), Stage("mul", times_two)], name="bench")
