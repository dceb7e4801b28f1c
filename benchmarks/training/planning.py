"""How long templates take to make, whether they are the best there are, and how well their times are predicted."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np

from multiworld.bench.report import Bound, Line
from multiworld.training.planning.nodes import Node
from multiworld.training.planning.profile import LayerCost, Profile
from multiworld.training.planning.search.making import best_templates
from multiworld.training.planning.template import Schedule, Stage, Template
from multiworld.training.planning.templates import make_templates
from multiworld.training.planning.times.bounds import lower_bounds_s
from multiworld.training.planning.timing import Timing, pipelines_of

__all__ = ["predicted", "templates"]

SIZES = range(4, 33)
SMALL_CASES = 1000


def templates(seed: int) -> list[Line]:
    """Make templates of 4 to 32 nodes for 100 layers, and of small models, where every partition can be tried."""
    profile = jittered(100, random.Random(seed))
    lines = []
    for name, room, refine, limit_ms in (
        ("without memory limits", None, False, 20),
        ("without memory limits, refined", None, True, 500),
        ("memory for the model and what 4 nodes hold in flight, refined", 1.35, True, 500),
        ("memory for little more than the model on 4 nodes, refined", 1.12, True, 500),
    ):
        node = Node(memory_bytes=None if room is None else int(profile.num_layers / 4 * 1000 * room))
        taken_s, made = cpu_s(lambda node=node, refine=refine: of_sizes(profile, node, refine=refine))  # type: ignore[misc]
        lines.append(
            Line(
                name=f"templates of 4 to 32 nodes, 100 layers: {name}",
                unit="ms",
                value=1e3 * taken_s,
                bound=Bound.at_most(limit_ms),
                details={"sizes that fit": float(len(made))},
                note="CPU, best of 7",
            )
        )
    return [*lines, _curves(seed), *_schedules(seed), *_brute_force(seed)]


def predicted(seed: int) -> list[Line]:
    """Compare what is predicted for templates with an event-driven simulation, operation by operation."""
    rng = random.Random(seed)
    formula, bound, exact = [], [], []
    for num_layers in (26, 50, 100):
        for latency_s, room in ((0.0, None), (0.0, 1.35), (0.05, None)):
            profile = jittered(num_layers, rng, latency_s)
            node = Node(memory_bytes=None if room is None else int(num_layers / 4 * 1000 * room))
            for size, template in of_sizes(profile, node, refine=True).items():
                timing = Timing.of(profile, [node] * size, template)
                simulated_s = timing.iteration_s(template.num_micro_batches)
                exact.append(abs(template.iteration_s / simulated_s - 1))
                bound.append(1 - bound_s(timing) / simulated_s)
                if latency_s == 0:
                    formula.append(1 - formula_s(timing) / simulated_s)
    return [
        Line(
            name=f"{name} against simulation, at worst",
            unit="%",
            value=100 * max(errors),
            bound=limit,
            details={"mean": 100 * sum(errors) / len(errors), "templates": float(len(errors))},
        )
        for name, errors, limit in (
            ("time of a template", exact, Bound.at_most(2)),
            ("lower bound that prunes", bound, Bound.at_most(2)),
            ("Oobleck's formula, no latencies", formula, None),
        )
    ]


def jittered(num_layers: int, rng: random.Random, latency_s: float = 0.0) -> Profile:
    """Return layers of 1 to 1.2 s forward, with a short first one and a long last one."""
    forward_s = [1 + 0.2 * rng.random() for _ in range(num_layers)]
    forward_s[0], forward_s[-1] = 0.3, 1.8
    return Profile(
        model="jittered",
        micro_batch=1,
        latency_s=latency_s,
        layers=tuple(
            LayerCost(
                name=f"layer{index}",
                forward_s=each,
                backward_s=2 * each,
                state_bytes=1000,
                activation_bytes=150,
                output_bytes=20,
            )
            for index, each in enumerate(forward_s)
        ),
    )


def of_sizes(profile: Profile, node: Node, *, refine: bool) -> dict[int, Template]:
    """Return templates of 4 to 32 nodes, as far as there are layers for them."""
    sizes = [each for each in SIZES if each <= profile.num_layers]
    return best_templates(profile, [node] * sizes[-1], sizes, [4 * each for each in sizes], refine=refine)


def cpu_s(make: Callable[[], dict[int, Template]]) -> tuple[float, dict[int, Template]]:
    """Return the least CPU time of seven."""
    taken_s = []
    for _ in range(7):
        began_s = time.process_time()
        made = make()
        taken_s.append(time.process_time() - began_s)
    return min(taken_s), made


def bound_s(timing: Timing) -> float:
    """Return the lower bound with which candidates are pruned."""
    counts = np.array([timing.template.num_micro_batches])
    return float(lower_bounds_s(pipelines_of([timing]), counts)[0])


def formula_s(timing: Timing) -> float:
    """Return what Oobleck's formula has for a step (Jang et al. 2023, section 4.1.2)."""
    work_s = [sum(each) for each in zip(timing.forward_s, timing.backward_s, strict=True)]
    slowest = max(range(len(work_s)), key=lambda each: (work_s[each], each))
    turns = timing.template.num_micro_batches - len(work_s) + slowest - 1
    return sum(work_s) + turns * work_s[slowest] + sum(work_s[slowest:])


def _curves(seed: int) -> Line:
    made = make_templates(jittered(100, random.Random(seed)), Node(), num_nodes=64, tolerate=1, refine=False)
    began_s = time.process_time()
    made.iterations_s(made.sizes[-1], 1024)
    return Line(
        name="times of steps with 1 to 1,024 micro-batches, 63 sizes",
        unit="ms",
        value=1e3 * (time.process_time() - began_s),
        note="CPU, once",
    )


def _schedules(seed: int) -> Iterator[Line]:
    """Choose among all schedules, with few and with many micro-batches, and compare with 1F1B alone."""
    profile = jittered(100, random.Random(seed))
    layers = tuple(replace(each, weight_backward_s=each.forward_s) for each in profile.layers)
    profile, sizes = replace(profile, layers=layers), range(4, 17, 4)
    for turns in (1, 4):
        counts = [turns * each for each in sizes]
        plain = best_templates(profile, [Node()] * sizes[-1], sizes, counts)
        began_s = time.process_time()
        chosen = best_templates(profile, [Node()] * sizes[-1], sizes, counts, schedules=tuple(Schedule))
        taken_s = time.process_time() - began_s
        gains = [plain[each].iteration_s / chosen[each].iteration_s for each in sizes]
        yield Line(
            name=f"1F1B's step against the best schedule's, 4 to 16 nodes with {turns} micro-batches each",
            unit="times",
            value=sum(gains) / len(gains),
            bound=Bound(at="least", limit=1),
            details={"least": min(gains), "most": max(gains), "ms of CPU": 1e3 * taken_s},
            note=", ".join(chosen[each].schedule.value for each in sizes),
        )


def _brute_force(seed: int) -> Iterator[Line]:
    for name, is_limited in (("without memory limits", False), ("with memory limits", True)):
        rng, worse, worst, none_fits = random.Random(seed), 0, 0.0, 0
        for _ in range(SMALL_CASES):
            profile, node, size, count = _small_case(rng, is_limited=is_limited)
            made = best_templates(profile, [node] * size, [size], [count]).get(size)
            best_s = min(_all_times_s(profile, node, size, count), default=None)
            assert (made is None) == (best_s is None), f"{profile}, {node}: {made}, by brute force {best_s}"
            if made is None or best_s is None:
                none_fits += 1
                continue
            gap = made.iteration_s / best_s - 1
            worse, worst = worse + (gap > 1e-9), max(worst, gap)
        yield Line(
            name=f"small models {name}: slower than the best that brute force finds",
            unit="",
            value=float(worse),
            bound=Bound.at_most(0),
            details={"cases": float(SMALL_CASES), "worst, %": 100 * worst, "do not fit": float(none_fits)},
        )


def _small_case(rng: random.Random, *, is_limited: bool) -> tuple[Profile, Node, int, int]:
    num_layers = rng.randint(3, 9)
    layers = tuple(
        LayerCost(
            name=f"layer{index}",
            forward_s=rng.uniform(0.5, 1.5),
            backward_s=rng.uniform(0.8, 3.0),
            state_bytes=rng.randint(50, 150),
            activation_bytes=rng.randint(10, 50),
            output_bytes=rng.randint(1, 8),
        )
        for index in range(num_layers)
    )
    profile = Profile(model="small", micro_batch=1, layers=layers, latency_s=rng.choice([0.0, 0.0, 0.05, 0.3]))
    size = rng.randint(1, min(num_layers, 5))
    memory_bytes = int(rng.uniform(0.9, 2.0) * 100 * num_layers / size + 40)
    return profile, Node(memory_bytes=memory_bytes if is_limited else None), size, rng.randint(1, 4 * size)


def _all_times_s(profile: Profile, node: Node, size: int, count: int) -> Iterator[float]:
    """Simulate every partition that fits, with all limits of micro-batches in flight, with and without recompute."""
    ways = [(size, False)]
    if node.memory_bytes is not None:
        ways = [(in_flight, recompute) for in_flight in range(1, size + 1) for recompute in (False, True)]
    for inner in combinations(range(1, profile.num_layers), size - 1):
        for in_flight, recompute in ways:
            template = _template((0, *inner, profile.num_layers), in_flight, recompute, count)
            if all(_fits(profile, node, template, stage) for stage in range(size)):
                yield Timing.of(profile, [node] * size, template).iteration_s(count)


def _template(cuts: Sequence[int], in_flight: int, recompute: bool, count: int) -> Template:
    num_stages = len(cuts) - 1
    return Template(
        num_nodes=num_stages,
        stages=tuple(Stage(first=first, end=end, node=node) for node, (first, end) in enumerate(pairwise(cuts))),
        num_micro_batches=count,
        iteration_s=0.0,
        max_in_flight=tuple(min(in_flight, num_stages - stage) for stage in range(num_stages)),
        schedule=Schedule.ONE_F_ONE_B,
        recompute=recompute,
    )


def _fits(profile: Profile, node: Node, template: Template, stage: int) -> bool:
    first, end = template.stages[stage].first, template.stages[stage].end
    held = min(template.max_in_flight[stage], template.num_micro_batches)
    needed = sum(each.state_bytes for each in profile.layers[first:end])
    activations = sum(each.activation_bytes for each in profile.layers[first:end])
    if template.recompute:
        needed += activations + held * profile.layers[max(0, first - 1)].output_bytes
    else:
        needed += activations * held
    return node.memory_bytes is None or needed <= node.memory_bytes
