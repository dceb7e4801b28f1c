"""Which schedules pipelines may have, by the name that a program or a command gives. Pure."""

from __future__ import annotations

from typing import Final

from ..errors import PlanError
from .nodes import Node
from .profile import Profile
from .template import Schedule
from .templates import Templates, faster, make_templates

SCHEDULES: Final = {
    "auto": (Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE),
    "1f1b": (Schedule.ONE_F_ONE_B,),
    "zero-bubble": (Schedule.ZERO_BUBBLE,),
}
LEAST_GAIN = 0.03
"""The part of a step that a split backward has to save: it costs some calls of Python for each product."""
WORTH_PUTTING_OFF = 0.1
"""The part of all backwards: below it there is too little to fill bubbles with."""


def schedules_named(name: str) -> tuple[Schedule, ...]:
    """Raises ValueError for a name that is none."""
    if name not in SCHEDULES:
        raise ValueError(f"schedule={name!r}: expected one of {', '.join(map(repr, SCHEDULES))}")
    return SCHEDULES[name]


def may_split(name: str, profile: Profile) -> bool:
    """Return whether rerouted work puts off gradients of weights, as far as these layers have enough of them."""
    weights_s = sum(each.weight_backward_s for each in profile.layers)
    backward_s = sum(each.backward_s for each in profile.layers)
    return Schedule.ZERO_BUBBLE in schedules_named(name) and weights_s >= WORTH_PUTTING_OFF * backward_s


def scheduled_templates(profile: Profile, node: Node, name: str, *, num_nodes: int, tolerate: int) -> Templates:
    """Return templates with this schedule; "auto": for each size the faster one. Raises as ``make_templates``."""
    if name == Schedule.ZERO_BUBBLE.value:
        split = [Schedule.ZERO_BUBBLE]
        return make_templates(profile.split, node, num_nodes=num_nodes, tolerate=tolerate, schedules=split)
    usual = make_templates(profile, node, num_nodes=num_nodes, tolerate=tolerate)
    if not may_split(name, profile):
        return usual
    try:
        other = scheduled_templates(profile, node, Schedule.ZERO_BUBBLE.value, num_nodes=num_nodes, tolerate=tolerate)
    except PlanError:  # it needs more memory
        return usual
    return faster(usual, other, least_gain=LEAST_GAIN)
