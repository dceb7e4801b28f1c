"""What the facts of a step mean: the same for all who have heard them."""

from __future__ import annotations

import math
import random

from multiworld.training.engine.decision import decide, means
from multiworld.training.engine.facts import Facts


def test_values_are_means_over_micro_batches_whoever_computed_them() -> None:
    numbers = [random.Random(0).gauss(0, 10.0**power) for power in range(-8, 8)]
    once = means([Facts(step=0, done=tuple(range(16)), values={"loss": tuple(numbers)})])
    split = [
        Facts(step=0, done=(3,), values={"loss": (numbers[3],)}),
        Facts(step=0, done=(), values={}),
        Facts(step=0, done=(0,), values={"loss": tuple(numbers[:3] + numbers[4:])}),
    ]
    assert means(split) == once == {"loss": math.fsum(numbers) / 16}


def test_a_value_that_only_some_recorded_is_the_mean_of_these() -> None:
    facts = [
        Facts(step=0, done=(0,), values={"a": (1.0,)}),
        Facts(step=0, done=(1,), values={"a": (3.0,), "b": (5.0,)}),
    ]
    assert means(facts) == {"a": 2.0, "b": 5.0}


def test_what_is_not_finite_stays_visible() -> None:
    facts = [
        Facts(step=0, done=(0, 1), values={"loss": (1.0, "nan")}),
        Facts(step=0, done=(2,), values={"x": ("inf",)}),
    ]
    found = means(facts)
    assert math.isnan(found["loss"])
    assert found["x"] == math.inf


def test_a_parameter_is_unused_if_nobody_who_computed_used_it() -> None:
    facts = [
        Facts(step=0, done=(0,), unused=(1, 2)),
        Facts(step=0, done=(1,), unused=(2, 3)),
        Facts(step=0, done=(), is_ready=False),
    ]
    assert decide(facts).unused == {2}
    assert decide([Facts(step=0)]).unused == frozenset()


def test_members_are_told_by_their_place() -> None:
    outcome = decide(
        [
            Facts(step=0, done=(0, 1), newcomers=("n",)),
            Facts(step=0, is_ready=False),
            Facts(step=0, done=(2,), is_leaving=True, changed=(4,), save=True),
        ]
    )
    assert outcome.not_ready == {1}
    assert outcome.leaving == {2}
    assert outcome.newcomers == ("n",)
    assert outcome.changed == {4}
    assert (outcome.num_done, outcome.save) == (3, True)
