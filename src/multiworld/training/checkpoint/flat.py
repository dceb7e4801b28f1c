"""A captured state as a flat table of named tensors and values, and back with its keys and containers as they were.

The names are those of ``torch.distributed.checkpoint``, so it can read what we write. Its own way back makes strings
of all keys and lists of all sequences, which optimizers do not take; ``structure`` keeps what is lost there. It is
plain data, so reading it needs none of our code.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..state import StateDict

STRUCTURE = "structure"
LEAF, DICT, ORDERED, LIST = "leaf", "dict", "ordered", "list"

SIMPLE = frozenset({Tensor, bool, int, float, str, type(None)})

Path = tuple["str | int", ...]


@dataclass(frozen=True)
class FlatState:
    """``leaves``: tensors and values by name. ``paths``: what each name was made of. ``structure``: see the module."""

    leaves: StateDict
    paths: Mapping[str, Path]
    structure: Any


def flatten(capture: StateDict) -> FlatState:
    """Take what ``TrainingState.capture`` returned; tensors are not copied. Raises ValueError if two names are equal.

    Names: ``step``, ``rng.cpu``, ``model.NAME.…``, ``optimizer.NAME.…``, ``loader.…``.
    """
    leaves: StateDict = {}
    paths: dict[str, Path] = {}
    structure = _structure(_nested(capture), "", (), leaves, paths)
    return FlatState(leaves, paths, structure)


class Flattener:
    """Flattens state after state of one training. One that is built as the last one only has its leaves collected."""

    def __init__(self) -> None:
        self._paths: Mapping[str, Path] = {}
        self._structure: Any = None

    def flatten(self, capture: StateDict) -> FlatState:
        """Return what the function ``flatten`` does, and raise what it raises."""
        leaves: StateDict = {}
        if self._structure is None or not _collect(self._structure, _nested(capture), leaves):
            flat = flatten(capture)
            self._paths, self._structure = flat.paths, flat.structure
            return flat
        return FlatState(leaves, self._paths, self._structure)


def unflatten(structure: Any, leaves: StateDict) -> StateDict:
    """Return what ``TrainingState.restore`` takes."""
    nested = _build(structure, leaves)
    step, rng = nested.pop("step"), nested.pop("rng")
    return {"step": step, "rng": rng, "parts": nested}


def _nested(capture: StateDict) -> StateDict:
    return {"step": capture["step"], "rng": capture["rng"], **capture["parts"]}


def _collect(structure: Any, value: Any, leaves: StateDict) -> bool:
    """Take the leaves of a value that is built like this. Returns False if it is not, or may not be."""
    kind, content = structure[0], structure[1]
    if kind == LEAF:
        if type(value) not in SIMPLE and (
            isinstance(value, Mapping) or (isinstance(value, list) and _is_divided(value))
        ):
            return False
        leaves[content] = value
        return True
    if kind == LIST:
        return (
            type(value) is list
            and len(value) == len(content)
            and _is_divided(value)
            and all(_collect(each, its, leaves) for each, its in zip(content, value, strict=True))
        )
    if type(value) is not (OrderedDict if kind == ORDERED else dict) or len(value) != len(content):
        return False
    if kind == ORDERED and vars(value) != structure[2]:
        return False
    for (key, each), (its_key, its) in zip(content, value.items(), strict=True):
        if type(its_key) is not type(key) or its_key != key or not _collect(each, its, leaves):
            return False
    return True


def _structure(value: Any, name: str, path: Path, leaves: StateDict, paths: dict[str, Path]) -> Any:
    """Return what ``_build`` needs, and note the leaves. DCP takes only these containers apart, and so do we."""
    if isinstance(value, Mapping):
        dot = name and name + "."
        items = []
        for key, each in value.items():
            text = str(key)
            items.append((key, _structure(each, dot + text, (*path, text), leaves, paths)))
        if type(value) is OrderedDict:
            return ORDERED, items, copy.deepcopy(vars(value))  # a module's has its versions in an attribute
        return DICT, items
    if isinstance(value, list) and _is_divided(value):
        return LIST, [
            _structure(each, f"{name}.{index}", (*path, index), leaves, paths) for index, each in enumerate(value)
        ]
    if name in leaves or name == STRUCTURE:
        raise ValueError(f"two values of the state are called {name!r}; rename one of the keys that it is made of")
    leaves[name], paths[name] = value, path
    return LEAF, name


def _is_divided(values: list[Any]) -> bool:
    return any(isinstance(each, (Tensor, Mapping)) or (isinstance(each, list) and _is_divided(each)) for each in values)


def _build(structure: Any, leaves: StateDict) -> Any:
    kind, content = structure[0], structure[1]
    if kind == LEAF:
        return leaves[content]
    if kind == LIST:
        return [_build(each, leaves) for each in content]
    pairs = [(key, _build(each, leaves)) for key, each in content]
    if kind == DICT:
        return dict(pairs)
    ordered = OrderedDict(pairs)
    vars(ordered).update(structure[2])
    return ordered
