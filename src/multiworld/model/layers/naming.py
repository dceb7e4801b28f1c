"""Names layers by the parts of the model whose parameters they hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from torch import nn


def names_of(model: nn.Module, held: Sequence[Mapping[str, nn.Parameter]]) -> list[str]:
    """Return a name for each layer: the path of the part that is this layer, or else of the largest part in it.

    ``held``: the parameters of each layer. A layer that is one of several with a name gets a number behind it.
    """
    names = [_name(model, parameters) for parameters in held]
    counts = Counter(names)
    seen: Counter[str] = Counter()
    for place, name in enumerate(names):
        if counts[name] > 1:
            seen[name] += 1
            names[place] = f"{name}:{seen[name]}"
    return names


def _name(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> str:
    owners = {name: name.rpartition(".")[0].split(".") for name in parameters}
    common = ".".join(_common_start(list(owners.values())))
    whole = {id(value) for value in model.get_submodule(common).parameters()}
    if common and whole <= {id(value) for value in parameters.values()}:
        return common
    sizes: Counter[str] = Counter()
    depth = len(common.split(".")) if common else 0
    for name, value in parameters.items():
        sizes[".".join(owners[name][: depth + 1])] += value.numel()
    return sizes.most_common(1)[0][0] if sizes else type(model).__name__


def _common_start(paths: Sequence[list[str]]) -> list[str]:
    first, last = min(paths, default=[]), max(paths, default=[])
    size = next((place for place, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), None)
    return first[: min(len(first), len(last)) if size is None else size]
