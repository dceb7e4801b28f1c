"""A template's timeline is what its predicted time was made of."""

from __future__ import annotations

import pytest

from multiworld.training.planning.nodes import Node
from multiworld.training.planning.profile import LayerCost, Profile
from multiworld.training.planning.templates import make_templates
from multiworld.training.planning.timelines import timeline_of
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
        found = timeline_of(UNEQUAL, node, template, template.num_micro_batches)
        predicted_s = templates.iteration_s(template.num_nodes, template.num_micro_batches)
        assert found.iteration_s == pytest.approx(template.iteration_s, rel=1e-12)
        assert found.iteration_s == pytest.approx(predicted_s, rel=1e-12)
        assert len(found.operations) == 2 * template.num_stages * template.num_micro_batches


def test_bubbles_of_equal_stages_are_those_of_the_formula() -> None:
    templates = make_templates(uniform_profile(12), Node(), num_nodes=4)
    for size in (1, 2, 4):
        found = timeline_of(templates.profile, templates.node, templates.template(size), 8)
        assert found.bubbles == pytest.approx((size - 1) / (8 + size - 1))
