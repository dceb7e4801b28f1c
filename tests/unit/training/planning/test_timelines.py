"""A template's timeline is what its predicted time was made of."""

from __future__ import annotations

import pytest

from multiworld.training.planning.nodes import Node
from multiworld.training.planning.profile import LayerCost, Profile
from multiworld.training.planning.templates import make_templates
from multiworld.training.planning.timelines import TemplateTimeline
from multiworld.training.planning.timing import Timing
from multiworld.training.planning.uniform import uniform_profile

MEMORY = Node(memory_bytes=300)
UNEQUAL = Profile(
    model="m",
    micro_batch=1,
    layers=tuple(
        LayerCost(
            name=str(each),
            forward_s=1.0 + each % 3,
            backward_s=2.0 + each % 4,
            state_bytes=50,
            activation_bytes=10,
            output_bytes=each,
        )
        for each in range(12)
    ),
    latency_s=0.01,
    bytes_per_s=100.0,
)


@pytest.mark.parametrize("node", [Node(), MEMORY, Node(speed=2.0)])
def test_the_last_operation_ends_when_the_prediction_says(node: Node) -> None:
    templates = make_templates(UNEQUAL, node, num_nodes=10)
    for template in templates:
        found = TemplateTimeline(Timing.of(UNEQUAL, [node] * template.num_nodes, template))
        predicted_s = templates.iteration_s(template.num_nodes, template.num_micro_batches)
        ends_s = max(each.end_s for each in found.operations)
        assert ends_s == pytest.approx(found.iteration_s, rel=1e-12)
        assert ends_s == pytest.approx(predicted_s, rel=1e-12)
        assert len(found.operations) == 2 * template.num_stages * template.num_micro_batches
        busy_s = sum(each.end_s - each.begin_s for each in found.operations)
        assert found.bubbles == pytest.approx(1 - busy_s / (ends_s * template.num_stages))


def test_bubbles_of_equal_stages_are_those_of_the_formula() -> None:
    templates = make_templates(uniform_profile(12), Node(), num_nodes=4, num_micro_batches=8)
    for size in (1, 2, 4):
        template = templates.template(size)
        found = TemplateTimeline(Timing.of(templates.profile, [templates.node] * size, template))
        assert found.bubbles == pytest.approx((size - 1) / (8 + size - 1))
