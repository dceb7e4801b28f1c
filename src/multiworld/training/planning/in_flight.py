"""How many micro-batches a stage may have between their forward and their backward: what fits, and what is of use."""

from __future__ import annotations

import numpy as np

from .search.segments import Segments
from .template import Schedule, Template
from .template_set import TemplateSet

MOST = 2**16


def room_in_flight(template: Template, stage: int, templates: TemplateSet, *, is_split: bool) -> int:
    """Return how many micro-batches a stage's device could hold."""
    each = template.stages[stage]
    if templates.node.memory_bytes is None:
        return MOST
    segments = Segments.of(templates.profile.split if is_split else templates.profile, each.devices)
    first, end = np.array([each.first]), np.array([each.end])
    one, two = (
        float(segments.needed_bytes(first, end, np.array([count]), recompute=template.recompute)[0]) for count in (1, 2)
    )
    if two <= one:
        return MOST
    return 1 + int(max(0.0, templates.node.memory_bytes - one) // (two - one))


def executed_in_flight(template: Template, num_micro_batches: int, templates: TemplateSet) -> tuple[int, ...]:
    """Return for each stage how many micro-batches it may hold in a step: one more than in the template, if it fits.

    1F1B's stages hold just as many as a round trip to the last stage lasts, so each latency and each operation that
    takes longer than the others delays them all. One more is there meanwhile (eager 1F1B, Zhuang et al. 2023, arXiv
    2211.05322). The last stage waits for no round trip. In a step of few micro-batches they would only come in each
    other's way, and with a split backward stages have put-off work to fill gaps with.
    """
    limits = template.max_in_flight
    if template.schedule is not Schedule.ONE_F_ONE_B or num_micro_batches <= template.num_stages:
        return limits
    return tuple(
        max(limit, min(limit + 1, behind + 2, room_in_flight(template, stage, templates, is_split=False)))
        if (behind := template.num_stages - 1 - stage)
        else limit
        for stage, limit in enumerate(limits)
    )
