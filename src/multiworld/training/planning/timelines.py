"""When each stage of a template computes what in a step, and how much of the step it stands idle. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .nodes import Node
from .profile import Profile
from .simulation import Timed
from .template import Template
from .timing import Timing


@dataclass(frozen=True, kw_only=True)
class TemplateTimeline:
    """One step of a pipeline, alone."""

    template: Template
    operations: tuple[Timed, ...]

    @property
    def iteration_s(self) -> float:
        return max(each.end_s for each in self.operations)

    @property
    def bubbles(self) -> float:
        """The part of the step in which a stage stands idle, in the mean of all stages."""
        busy_s = sum(each.end_s - each.begin_s for each in self.operations)
        return 1.0 - busy_s / (self.iteration_s * self.template.num_stages)


def timeline_of(profile: Profile, node: Node, template: Template, num_micro_batches: int) -> TemplateTimeline:
    """Return the timeline of a step with so many micro-batches."""
    timing = Timing.of(profile, [node] * template.num_nodes, template)
    return TemplateTimeline(template=template, operations=tuple(timing.timeline(num_micro_batches)))
