"""States as flat tables, and back."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from multiworld.training.checkpoint.flat import Flattener, flatten, unflatten
from tests.checkpoints import Trained, equal


def captured(parts: dict[str, Any]) -> dict[str, Any]:
    return {"step": 3, "rng": {"cpu": torch.zeros(2)}, "parts": parts}


ODD = {
    "loader": {"epoch": 1, "seen": [], "nested": {}, "pairs": [(1, 2), (3, 4)], "mixed": [{"a": 1}, [torch.ones(1)]]},
    "optimizer.sgd": {"state": {0: {"momentum": torch.ones(2)}, 7: {}}, "param_groups": [{"params": [0, 1]}]},
    "tracked.ema": {"t": (torch.ones(1), 2), "none": None, 3: "three"},
}


def test_what_was_flattened_comes_back_with_its_keys_and_containers() -> None:
    flat = flatten(captured(ODD))
    back = unflatten(flat.structure, flat.leaves)
    assert back["step"] == 3
    assert equal(back["rng"], {"cpu": torch.zeros(2)})
    assert equal(back["parts"], ODD)


@pytest.mark.parametrize("parts", [ODD, Trained().train(2).state.capture()["parts"]])
def test_names_and_paths_are_those_of_dcp(parts: dict[str, Any]) -> None:
    capture = captured(parts)
    planner = DefaultSavePlanner()
    planner.set_up_planner({"step": 3, "rng": capture["rng"], **parts}, None, True)
    flat = flatten(capture)
    assert list(flat.leaves) == list(planner.state_dict)
    assert flat.paths == planner.mappings


def test_versions_of_modules_are_kept() -> None:
    state = Trained().model.state_dict()
    flat = flatten(captured({"model.net": state}))
    back = unflatten(flat.structure, flat.leaves)["parts"]["model.net"]
    assert type(back) is OrderedDict
    assert back._metadata == state._metadata  # type: ignore[attr-defined]


@pytest.mark.parametrize("parts", [{"tracked.a": {1: 2, "1": 3}}, {"tracked": {"a.b": 1, "a": {"b": 2}}}])
def test_two_values_of_one_name_are_refused(parts: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"two values of the state are called 'tracked\.a"):
        flatten(captured(parts))


def test_the_next_state_is_flattened_as_if_it_were_the_first() -> None:
    flattener = Flattener()
    trained = Trained()
    for _ in range(3):
        capture = trained.train(1).state.capture()
        assert equal(vars(flattener.flatten(capture)), vars(flatten(capture)))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": 1, "b": 2}, {"a": 1}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({1: "a"}, {True: "a"}),
        ({1: "a"}, {"1": "a"}),
        ({"a": 1}, {"a": {"b": 1}}),
        ({"a": {"b": 1}}, {"a": 1}),
        ({"a": [1, 2]}, {"a": [1, torch.ones(1)]}),
        ({"a": [1, torch.ones(1)]}, {"a": [1, 2]}),
        ({"a": [torch.ones(1)]}, {"a": [torch.ones(1), 1]}),
        ({"a": {"b": 1}}, {"a": OrderedDict(b=1)}),
        ({"a": OrderedDict(b=1)}, {"a": {"b": 1}}),
        ({"a": 1}, {"a": torch.ones(1)}),
        ({"a": {}}, {"a": []}),
    ],
)
def test_a_state_that_is_built_otherwise_is_seen_as_that(before: dict[Any, Any], after: dict[Any, Any]) -> None:
    flattener = Flattener()
    flattener.flatten(captured({"tracked.x": before}))
    found, expected = flattener.flatten(captured({"tracked.x": after})), flatten(captured({"tracked.x": after}))
    assert equal(vars(found), vars(expected))
    assert equal(unflatten(found.structure, found.leaves)["parts"], {"tracked.x": after})


def test_versions_of_modules_that_change_are_seen() -> None:
    flattener, state = Flattener(), Trained().model.state_dict()
    flattener.flatten(captured({"model.net": state}))
    state._metadata["0"]["version"] = 7  # type: ignore[attr-defined]
    flat = flattener.flatten(captured({"model.net": state}))
    assert unflatten(flat.structure, flat.leaves)["parts"]["model.net"]._metadata["0"] == {"version": 7}


def test_two_values_of_one_name_are_refused_later_too() -> None:
    flattener = Flattener()
    flattener.flatten(captured({"tracked.a": {1: 2}}))
    for _ in range(2):
        with pytest.raises(ValueError, match="two values of the state are called"):
            flattener.flatten(captured({"tracked.a": {1: 2, "1": 3}}))
