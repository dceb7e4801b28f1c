"""How many micro-batches stages hold: one more than the schedule needs, if it fits and is of use."""

from __future__ import annotations

import random

import pytest

from multiworld.training.planning.in_flight import executed_in_flight
from multiworld.training.planning.nodes import Node
from multiworld.training.planning.profile import LayerCost, Profile
from multiworld.training.planning.simulation import iteration_s
from multiworld.training.planning.template import Schedule
from multiworld.training.planning.templates import Templates, make_templates

STATE, ACTIVATIONS = 100, 10
STAGES = 3


def templates(memory_bytes: int | None, schedule: Schedule = Schedule.ONE_F_ONE_B) -> Templates:
    """Return those of as many equal layers as stages."""
    layer = LayerCost(
        name="layer",
        forward_s=1.0,
        backward_s=2.0,
        weight_backward_s=1.0,
        state_bytes=STATE,
        activation_bytes=ACTIVATIONS,
        output_bytes=1,
    )
    profile = Profile(model="m", micro_batch=1, layers=(layer,) * STAGES)
    return make_templates(profile, Node(memory_bytes=memory_bytes), num_nodes=STAGES, schedules=[schedule])


@pytest.mark.parametrize(
    ("room", "expected"),
    [(None, (4, 3, 1)), (4, (4, 3, 1)), (3, (3, 3, 1))],
    ids=["enough", "just for one more", "not on the first stage"],
)
def test_stages_before_the_last_hold_one_more_if_it_fits(room: int | None, expected: tuple[int, ...]) -> None:
    made = templates(None if room is None else STATE + room * ACTIVATIONS)
    template = made.template(STAGES)
    assert template.max_in_flight == (3, 2, 1)
    assert executed_in_flight(template, 12, made) == expected


def test_they_do_not_in_a_step_of_few_micro_batches() -> None:
    made = templates(None)
    assert executed_in_flight(made.template(STAGES), STAGES, made) == (3, 2, 1)
    assert executed_in_flight(made.template(STAGES), STAGES + 1, made) == (4, 3, 1)


def test_they_do_not_with_a_split_backward() -> None:
    made = templates(None, Schedule.ZERO_BUBBLE)
    template = made.template(STAGES)
    assert template.schedule is Schedule.ZERO_BUBBLE
    assert executed_in_flight(template, 12, made) == template.max_in_flight


@pytest.mark.parametrize("latency_s", [0.0, 0.2])
def test_one_more_delays_no_step_and_hides_latencies(latency_s: float) -> None:
    rng, shares = random.Random(1), []
    for _ in range(300):
        size = rng.randint(2, 8)
        count = rng.randint(size + 1, 4 * size)
        forward_s = [rng.uniform(0.6, 1.4) for _ in range(size)]
        backward_s = [each * rng.uniform(1.5, 2.5) for each in forward_s]
        usual_s, more_s = (
            iteration_s(
                forward_s,
                backward_s,
                count,
                transfers_s=[latency_s] * (size - 1),
                max_in_flight=[behind + (more if behind > 1 else 0) for behind in range(size, 0, -1)],
            )
            for more in (0, 1)
        )
        shares.append(more_s / usual_s)
    assert max(shares) <= 1.005
    assert min(shares) < 0.95
