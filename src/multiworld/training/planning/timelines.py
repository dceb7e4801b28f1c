"""When each stage of a template computes what in a step, and how much of the step it stands idle. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .simulation import Timed
from .template import Template
from .timing import Timing


@dataclass(frozen=True)
class TemplateTimeline:
    """One step of a pipeline, alone, with as many micro-batches as its template was chosen for."""

    timing: Timing

    @property
    def template(self) -> Template:
        return self.timing.template

    @property
    def iteration_s(self) -> float:
        return self.template.iteration_s

    @cached_property
    def operations(self) -> tuple[Timed, ...]:
        """All operations of the step; made when first asked for, as large pipelines have many."""
        return tuple(self.timing.timeline(self.template.num_micro_batches))

    @property
    def bubbles(self) -> float:
        """The part of the step in which a stage stands idle, in the mean of all stages."""
        busy_s = self.template.num_micro_batches * (sum(self.timing.forward_s) + sum(self.timing.backward_s))
        return 1.0 - busy_s / (self.iteration_s * self.template.num_stages)
