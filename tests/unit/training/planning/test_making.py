"""Which template is the best: with several devices on a node, unequal nodes, several schedules, little memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from multiworld.training.errors import LayerTooLargeError, ModelTooLargeError
from multiworld.training.planning.nodes import Node
from multiworld.training.planning.profile import LayerCost, Profile
from multiworld.training.planning.search.making import best_templates
from multiworld.training.planning.template import Schedule, Template
from multiworld.training.planning.templates import faster, make_template, make_templates
from multiworld.training.planning.timing import Timing

ALL = tuple(Schedule)


def profile(num_layers: int = 12, latency_s: float = 0.0) -> Profile:
    layer = LayerCost(
        name="block",
        forward_s=1.0,
        backward_s=2.0,
        weight_backward_s=1.0,
        state_bytes=100,
        activation_bytes=10,
        output_bytes=1,
    )
    layers = tuple(replace(layer, name=f"block{index}") for index in range(num_layers))
    return Profile(model="m", micro_batch=1, layers=layers, latency_s=latency_s)


def with_sharded(speedup: float) -> Profile:
    whole = profile()
    half = tuple(
        replace(
            each,
            forward_s=each.forward_s / speedup,
            backward_s=each.backward_s / speedup,
            state_bytes=each.state_bytes // 2,
        )
        for each in whole.layers
    )
    return replace(whole, sharded={2: half})


def test_another_schedule_is_taken_for_the_sizes_where_it_saves_enough() -> None:
    usual, split = (make_templates(profile(), Node(), num_nodes=4, schedules=[each]) for each in ALL[::2])
    assert [each.schedule for each in faster(usual, split, least_gain=0.0)][1:] == [Schedule.ZERO_BUBBLE] * 3
    least_gain = 1 - split.template(2).iteration_s / usual.template(2).iteration_s + 1e-9
    some = [each.schedule for each in faster(usual, split, least_gain=least_gain)]
    assert some[1:] == [Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE, Schedule.ZERO_BUBBLE]


def sizes(template: Template) -> list[int]:
    return [each.num_layers for each in template.stages]


def test_a_slow_node_gets_less_and_a_small_one_no_more_than_it_holds() -> None:
    template = make_template(profile(), [Node(), Node(speed=0.5), Node()], num_micro_batches=12)
    assert sizes(template) == [5, 2, 5]
    template = make_template(profile(), [Node(), Node(), Node(memory_bytes=230)], num_micro_batches=12)
    assert sizes(template) == [5, 5, 2]


def test_what_unequal_nodes_take_is_what_a_simulation_of_them_takes() -> None:
    nodes = [Node(speed=1.5), Node(speed=0.7), Node()]
    template = make_template(profile(latency_s=0.2), nodes, num_micro_batches=9)
    assert template.iteration_s == pytest.approx(Timing.of(profile(latency_s=0.2), nodes, template).iteration_s(9))


def test_unequal_nodes_that_cannot_hold_the_model_are_told_how_many_more_would_do() -> None:
    with pytest.raises(ModelTooLargeError) as caught:
        make_template(profile(), [Node(memory_bytes=220), Node(memory_bytes=550)])
    assert caught.value.smallest == 3  # for 2, 5 and 5 layers
    with pytest.raises(LayerTooLargeError):
        make_template(profile(), [Node(memory_bytes=50), Node(memory_bytes=100)])


def test_more_nodes_than_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="3 nodes cannot share 2 layers"):
        make_template(profile(2), [Node()] * 3)


def test_two_stages_share_a_node_of_two_devices() -> None:
    template = best_templates(profile(), [Node(devices=2)] * 2, [2], [8])[2]
    assert [(each.node, each.num_layers) for each in template.stages] == [(0, 3), (0, 3), (1, 3), (1, 3)]


def test_transfers_within_a_node_take_no_time() -> None:
    inside = best_templates(profile(latency_s=1.0), [Node(devices=4)], [1], [8])[1]
    assert inside.iteration_s == pytest.approx((8 + 4 - 1) * 9)


@pytest.mark.parametrize(("speedup", "devices"), [(1.9, 2), (1.2, 1)])
def test_a_stage_is_on_two_devices_where_that_was_measured_to_be_faster(speedup: float, devices: int) -> None:
    template = best_templates(with_sharded(speedup), [Node(devices=2)] * 2, [2], [4])[2]
    assert {each.devices for each in template.stages} == {devices}
    assert template.num_nodes == 2


def test_a_layer_too_large_for_one_device_may_fit_on_two() -> None:
    templates = make_templates(with_sharded(1.0), Node(devices=2, memory_bytes=90), num_nodes=12)
    assert {each.devices for each in templates.template(templates.smallest).stages} == {2}
    with pytest.raises(LayerTooLargeError):
        make_templates(with_sharded(1.0), Node(devices=1, memory_bytes=90), num_nodes=12)


def test_a_schedule_is_chosen_by_what_a_step_takes() -> None:
    few = best_templates(profile(), [Node()] * 4, [4], [4], schedules=ALL)[4]
    assert few.schedule is not Schedule.ONE_F_ONE_B
    for schedule in ALL:
        alone = best_templates(profile(), [Node()] * 4, [4], [4], schedules=[schedule])[4]
        assert alone.schedule is schedule
        assert few.iteration_s <= alone.iteration_s
        assert alone.iteration_s == pytest.approx(Timing.of(profile(), [Node()] * 4, alone).iteration_s(4))


def test_zero_bubble_is_not_chosen_where_its_memory_is_missing_and_nothing_can_be_put_off() -> None:
    plain = replace(profile(), layers=tuple(replace(each, weight_backward_s=0.0) for each in profile().layers))
    made = best_templates(plain, [Node()] * 4, [4], [8], schedules=[Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE])
    assert made[4].schedule is Schedule.ONE_F_ONE_B
    tight = best_templates(profile(), [Node(memory_bytes=300 + 3 * 10)] * 4, [4], [8], schedules=ALL)[4]
    assert tight.schedule is Schedule.ZERO_BUBBLE or tight.recompute or tight.max_in_flight == (1, 1, 1, 1)


def test_interleaved_stages_of_a_node_fit_together() -> None:
    needed = 300 + 7 * 2 * 10 + 3 * 10  # three layers; chunks of two and one layer with several in flight
    made = best_templates(profile(), [Node(memory_bytes=needed)] * 4, [4], [4], schedules=[Schedule.INTERLEAVED])
    assert [each.node for each in made[4].stages] == [index % 4 for index in range(made[4].num_stages)]
    assert not best_templates(profile(), [Node(memory_bytes=340)] * 4, [4], [4], schedules=[Schedule.INTERLEAVED])


def test_activations_are_computed_again_where_that_is_faster_than_few_in_flight() -> None:
    heavy = replace(profile(), layers=tuple(replace(each, activation_bytes=100) for each in profile().layers))
    template = best_templates(heavy, [Node(memory_bytes=300 + 310)] * 4, [4], [16])[4]
    assert template.recompute
    assert template.max_in_flight == (4, 3, 2, 1)


def test_a_curve_of_an_interleaved_template_goes_on_as_the_simulation_does() -> None:
    made = make_templates(profile(24), Node(), num_nodes=4, schedules=[Schedule.INTERLEAVED], num_micro_batches=8)
    timing = Timing.of(made.profile, [made.node] * 4, made.template(4))
    for count in (1, 7, 24, 25, 61, 90):
        assert made.iteration_s(4, count) == pytest.approx(timing.iteration_s(count))


def test_no_schedule_that_fits_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no template of \['interleaved'\] fits: add 1f1b"):
        make_templates(profile(), Node(), num_nodes=1, schedules=[Schedule.INTERLEAVED])
