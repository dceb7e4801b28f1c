"""How many pipelines of which size: as fast as any way, enough for the losses that are tolerated, every node used."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from multiworld.training.errors import GlobalBatchTooSmallError, TooFewNodesError
from multiworld.training.planning.instantiation import Instance, divide_micro_batches, instantiate

from .fake_templates import FakeTemplates, random_templates, regular_templates


def compositions(nodes: int, sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if nodes == 0:
        yield ()
    for index, size in enumerate(sizes):
        if size <= nodes:
            for rest in compositions(nodes - size, sizes[index:]):
                yield (size, *rest)


def least_makespan_s(templates: FakeTemplates, sizes: tuple[int, ...], num_micro_batches: int) -> float:
    """Give micro-batches one by one to the pipeline that would then end first: exact, as no curve falls."""
    counts = [1] * len(sizes)
    curves_s = [templates.iterations_s(size, num_micro_batches) for size in sizes]
    for _ in range(num_micro_batches - len(sizes)):
        index = min(range(len(sizes)), key=lambda each: curves_s[each][counts[each] + 1])
        counts[index] += 1
    return max(float(curve_s[count]) for curve_s, count in zip(curves_s, counts, strict=True))


def check(templates: FakeTemplates, num_nodes: int, num_micro_batches: int, instances: tuple[Instance, ...]) -> None:
    assert sum(each.size for each in instances) == num_nodes
    assert sum(each.num_micro_batches for each in instances) == num_micro_batches
    assert min(each.num_micro_batches for each in instances) >= 1


@pytest.mark.parametrize("seed", range(150))
def test_no_other_composition_is_faster(seed: int) -> None:
    rng = random.Random(seed)
    smallest, tolerate = rng.randint(1, 4), rng.randint(0, 3)
    num_nodes = rng.randint((tolerate + 1) * smallest, max(16, (tolerate + 1) * smallest) if smallest > 1 else 11)
    num_micro_batches = rng.randint(tolerate + 1, 14)
    templates = random_templates(rng, range(smallest, num_nodes + 1), num_micro_batches)
    made = instantiate(templates, num_nodes, tolerate=tolerate, num_micro_batches=num_micro_batches)
    best_s = min(
        least_makespan_s(templates, sizes, num_micro_batches)
        for sizes in compositions(num_nodes, templates.sizes)
        if tolerate + 1 <= len(sizes) <= num_micro_batches
    )
    assert made.iteration_s == best_s
    check(templates, num_nodes, num_micro_batches, made.instances)
    assert (made.tolerates, made.idle) == (tolerate, 0)


@pytest.mark.parametrize("seed", range(8))
def test_an_integer_program_finds_none_that_is_faster_among_many_nodes(seed: int) -> None:
    rng = random.Random(seed)
    smallest, tolerate = rng.randint(2, 4), rng.randint(0, 3)
    num_nodes, num_micro_batches = rng.randint(24, 40), rng.randint(40, 100)
    sizes = tuple(range(smallest, num_nodes - tolerate * smallest + 1))
    templates = random_templates(rng, sizes, num_micro_batches)
    made = instantiate(templates, num_nodes, tolerate=tolerate, num_micro_batches=num_micro_batches)
    check(templates, num_nodes, num_micro_batches, made.instances)
    assert most_within(templates, num_nodes, tolerate, num_micro_batches, made.iteration_s) >= num_micro_batches
    just_below_s = made.iteration_s * (1 - 1e-12)
    assert most_within(templates, num_nodes, tolerate, num_micro_batches, just_below_s) < num_micro_batches


def most_within(
    templates: FakeTemplates, num_nodes: int, tolerate: int, num_micro_batches: int, makespan_s: float
) -> float:
    """Return how many micro-batches pipelines on all nodes can compute in that time, by HiGHS; -1 if there are none."""
    capacity = np.array(
        [(templates.iterations_s(size, num_micro_batches)[1:] <= makespan_s).sum() for size in templates.sizes]
    )
    able = capacity >= 1
    if not able.any():
        return -1
    found = milp(
        -capacity[able].astype(float),
        integrality=np.ones(able.sum()),
        bounds=Bounds(0, np.inf),
        constraints=[
            LinearConstraint(np.array(templates.sizes)[able], num_nodes, num_nodes),
            LinearConstraint(np.ones(able.sum()), tolerate + 1, num_micro_batches),
        ],
    )
    return round(-found.fun) if found.success else -1


def test_too_few_nodes_for_the_replicas_give_as_many_as_can_be_and_say_so() -> None:
    templates = regular_templates(range(3, 10), 12)
    made = instantiate(templates, 8, tolerate=2, num_micro_batches=12)
    assert [each.size for each in made.instances] in ([4, 4], [5, 3])
    assert (made.tolerates, made.wanted, made.is_degraded) == (1, 2, True)
    assert "too few nodes to tolerate 2 losses" in str(made)
    alone = instantiate(templates, 3, tolerate=2, num_micro_batches=12)
    assert alone.instances == (Instance(size=3, num_micro_batches=12),)
    assert alone.tolerates == 0


def test_fewer_nodes_than_the_smallest_pipeline_are_refused() -> None:
    with pytest.raises(TooFewNodesError, match="needs 3 nodes, and there are 2"):
        instantiate(regular_templates((3, 4), 4), 2, tolerate=0, num_micro_batches=4)


def test_a_global_batch_smaller_than_the_pipelines_is_refused_with_the_arithmetic() -> None:
    templates = regular_templates(range(2, 6), 4)
    with pytest.raises(GlobalBatchTooSmallError, match="3 x 4 = 12 samples") as raised:
        instantiate(templates, 6, tolerate=2, num_micro_batches=2)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    with pytest.raises(GlobalBatchTooSmallError):
        divide_micro_batches(templates, (2, 2, 2), 2)


def test_there_are_no_more_pipelines_than_micro_batches() -> None:
    made = instantiate(regular_templates(range(1, 9), 3), 8, tolerate=1, num_micro_batches=3)
    check(regular_templates((1,), 3), 8, 3, made.instances)
    assert len(made.instances) <= 3


def test_nodes_that_no_sizes_add_up_to_are_idle_and_named() -> None:
    made = instantiate(regular_templates((4, 5, 6), 8), 7, tolerate=1, num_micro_batches=8)
    assert (made.instances, made.idle) == ((Instance(size=6, num_micro_batches=8),), 1)
    assert str(made).endswith("idle nodes: 1")


def test_one_pipeline_is_taken_where_the_exchange_of_gradients_costs_more_than_its_bubbles() -> None:
    templates = regular_templates(range(2, 9), 16)
    assert len(instantiate(templates, 8, tolerate=0, num_micro_batches=16).instances) == 4
    alone = instantiate(templates, 8, tolerate=0, num_micro_batches=16, exchange_s=1e6)
    assert alone.instances == (Instance(size=8, num_micro_batches=16),)
    assert alone.iteration_s == templates.iterations_s(8, 16)[16]
    both = instantiate(templates, 8, tolerate=1, num_micro_batches=16, exchange_s=1.0)
    assert both.iteration_s == instantiate(templates, 8, tolerate=1, num_micro_batches=16).iteration_s + 1.0


@pytest.mark.parametrize("seed", range(50))
def test_micro_batches_are_divided_so_that_the_slowest_pipeline_is_fastest(seed: int) -> None:
    rng = random.Random(seed)
    sizes = tuple(rng.randint(2, 6) for _ in range(rng.randint(1, 5)))
    num_micro_batches = rng.randint(len(sizes), 20)
    templates = random_templates(rng, range(2, 7), num_micro_batches)
    counts, makespan_s = divide_micro_batches(templates, sizes, num_micro_batches)
    assert sum(counts) == num_micro_batches
    assert min(counts) >= 1
    assert makespan_s == least_makespan_s(templates, sizes, num_micro_batches)
