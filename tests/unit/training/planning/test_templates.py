"""Which templates there are for a model and nodes, and what is said where there are none."""

from __future__ import annotations

import pickle

import pytest

from multiworld.training.errors import LayerTooLargeError, ModelTooLargeError, TooFewNodesError
from multiworld.training.planning.instantiation import instantiate
from multiworld.training.planning.nodes import Node
from multiworld.training.planning.profile import LayerCost, Profile
from multiworld.training.planning.templates import make_templates
from multiworld.training.planning.timing import Timing

GIB = 2**30


def profile(num_layers: int = 12, state_gib: float = 1.0, activation_gib: float = 0.25) -> Profile:
    return Profile(
        model="gpt2",
        micro_batch=4,
        layers=tuple(
            LayerCost(
                name=f"block{index}",
                forward_s=0.01,
                backward_s=0.02,
                state_bytes=int(state_gib * GIB),
                activation_bytes=int(activation_gib * GIB),
            )
            for index in range(num_layers)
        ),
    )


def test_there_is_a_template_of_each_size_that_leaves_nodes_for_the_replicas() -> None:
    templates = make_templates(profile(), Node(memory_bytes=5 * GIB), num_nodes=9, tolerate=1)
    assert templates.smallest == 3
    assert templates.sizes == (3, 4, 5, 6)
    assert templates.uncovered == ()


def test_equal_layers_are_divided_evenly_and_take_what_the_formula_says() -> None:
    template = make_templates(profile(), Node(), num_nodes=4, num_micro_batches=8).template(4)
    assert [each.num_layers for each in template.stages] == [3, 3, 3, 3]
    assert template.iteration_s == pytest.approx((8 + 4 - 1) * 0.09)


def test_more_micro_batches_take_longer() -> None:
    templates = make_templates(profile(), Node(), num_nodes=4)
    times = [templates.iteration_s(3, count) for count in range(1, 20)]
    assert times == sorted(times)


def test_a_model_larger_than_all_memory_is_refused_with_the_count_that_would_do() -> None:
    with pytest.raises(
        ModelTooLargeError, match=r"gpt2 needs at least 15\.00 GiB .* 2 x 5\.00 GiB.* 3 of these nodes"
    ) as e:
        make_templates(profile(), Node(memory_bytes=5 * GIB), num_nodes=2)
    assert e.value.smallest == 3
    assert str(pickle.loads(pickle.dumps(e.value))) == str(e.value)


def test_a_layer_that_no_device_can_hold_is_named() -> None:
    with pytest.raises(LayerTooLargeError, match=r"block0 of gpt2 needs 1\.25 GiB"):
        make_templates(profile(), Node(memory_bytes=GIB), num_nodes=64)


def test_fewer_nodes_than_the_smallest_template_are_refused() -> None:
    templates = make_templates(profile(), Node(memory_bytes=5 * GIB), num_nodes=9, tolerate=1)
    with pytest.raises(TooFewNodesError, match=r"needs 3 nodes, and there are 2\. Start 1 more"):
        templates.template(2)


def test_counts_of_nodes_that_no_templates_use_up_are_named() -> None:
    templates = make_templates(profile(5), Node(memory_bytes=3 * GIB), num_nodes=13, tolerate=1)
    assert templates.sizes == (3, 4, 5)
    assert templates.uncovered == ()
    templates = make_templates(profile(5, state_gib=2), Node(memory_bytes=3 * GIB), num_nodes=13, tolerate=1)
    assert templates.sizes == (5,)  # a layer on each, and there are no more layers
    assert templates.uncovered == (6, 7, 8, 9, 11, 12, 13)


@pytest.mark.parametrize("num_nodes", [3, 4, 6])
def test_a_job_that_grows_past_its_first_nodes_uses_all_of_them(num_nodes: int) -> None:
    templates = make_templates(profile(), Node(memory_bytes=5 * GIB), num_nodes=num_nodes, tolerate=1)
    assert set(templates.sizes) >= {3, 4, 5}
    for grown in range(3, 20):
        made = instantiate(templates, grown, tolerate=1, num_micro_batches=24)
        assert made.idle == 0
        assert made.tolerates == (1 if grown >= 6 else 0)


def test_a_size_whose_micro_batches_do_not_fit_holds_fewer_of_them() -> None:
    templates = make_templates(profile(12, activation_gib=0.5), Node(memory_bytes=int(4.6 * GIB)), num_nodes=8)
    assert templates.smallest == 4
    smallest = templates.template(4)
    assert smallest.recompute or max(smallest.max_in_flight) < 4
    assert templates.template(8).max_in_flight == (8, 7, 6, 5, 4, 3, 2, 1)


def test_times_of_steps_are_those_of_a_simulation() -> None:
    templates = make_templates(profile(), Node(memory_bytes=5 * GIB), num_nodes=12)
    for template in templates:
        timing = Timing.of(templates.profile, [templates.node] * template.num_nodes, template)
        for count in (1, 2, 5, 70):
            assert templates.iteration_s(template.num_nodes, count) == pytest.approx(timing.iteration_s(count))
