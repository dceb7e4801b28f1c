"""How many micro-batches a stage may have between their forward and their backward: what fits, and what is of use."""

from __future__ import annotations

import numpy as np

from .search.segments import Segments
from .template import Schedule, Template
from .template_set import TemplateSet

MOST = 2**16


def rooms_in_flight(template: Template, templates: TemplateSet, *, is_split: bool) -> tuple[int, ...]:
    """Return how many micro-batches each stage's device could hold."""
    memory_bytes = templates.node.memory_bytes
    if memory_bytes is None:
        return (MOST,) * template.num_stages
    profile = templates.profile.split if is_split else templates.profile
    segments = {devices: Segments.of(profile, devices) for devices in {each.devices for each in template.stages}}
    rooms = []
    for each in template.stages:
        first, end = np.array([each.first]), np.array([each.end])
        one, two = (
            float(segments[each.devices].needed_bytes(first, end, count, recompute=template.recompute)[0])
            for count in (1, 2)
        )
        rooms.append(MOST if two <= one else 1 + int(max(0.0, memory_bytes - one) // (two - one)))
    return tuple(rooms)


def executed_in_flight(template: Template, num_micro_batches: int, templates: TemplateSet) -> tuple[int, ...]:
    """Return for each stage how many micro-batches it may hold in a step: one more than in the template, if it fits.

    1F1B's stages hold just as many as a round trip to the last stage lasts, so each latency and each operation that
    takes longer than the others delays them all. One more is there meanwhile (eager 1F1B, Zhuang et al. 2023, arXiv
    2211.05322). The last stage waits for no round trip. In a step of few micro-batches they would only come in each
    other's way, and with a split backward stages have put-off work to fill gaps with.
    """
    limits, num_stages = template.max_in_flight, template.num_stages
    if template.schedule is not Schedule.ONE_F_ONE_B or num_micro_batches <= num_stages:
        return limits
    rooms = rooms_in_flight(template, templates, is_split=False)
    before_last = (
        max(limit, min(limit + 1, num_stages - stage + 1, room))
        for stage, (limit, room) in enumerate(zip(limits[:-1], rooms, strict=False))
    )
    return (*before_last, limits[-1])
