"""Cuts a model into layers without the user's help: follows it, chooses where, builds and checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn

from ..copying import random_states_kept
from ..errors import CutError
from ..measuring import measure
from ..structure import without_objects
from ..tracing.fast_path import without_fast_path
from .batches import Arguments, example_of, home_of
from .behaviour import Behaviour, behaviour_of, refuse_kind, training_copy
from .digest import digest_of
from .equality import difference_between, outputs_agree
from .fitting import Fitting, Limits
from .following import Graph, followed
from .layer import Crossing, LayeredModel, ModelLayer
from .naming import names_of
from .ownership import check_buffers, held_by
from .pieces import build_pieces
from .places import choose, cuttable, layout_of, sink_weights
from .trial import Tensors, Trial, left_as_it_was, run_chain


def layers_of(model: nn.Module, example: Any) -> LayeredModel:
    """Cut a model into a chain of layers that compute in training what it computes, forward and backward.

    ``example``: a micro-batch of a loader, on any device, with two rows or more, or else only batches with one row are
    taken. Which other shapes are taken depends on the model. The layers use the model's own parameters and buffers:
    move the model to its device first. They are in training mode, with dropout drawn from PyTorch's global random
    numbers. A part of the model that is in evaluation mode, while the model is in training mode, stays so. The model,
    its gradients and buffers, and the random numbers stay as they are.

    The cuts lie at the ends of repeated blocks, and inside of them where no more bytes cross. Each process that cuts
    the same model gets the same layers; ``digest`` tells.

    A part that cannot be followed, for its values choose what it computes or it defines gradients of its own, is one
    layer; then only batches of the example's shapes are taken.

    Raises CutError for a model that cannot be followed, that keeps state between calls besides buffers, or whose layers
    do not compute what it computes with the example. Raises TypeError for what is no module.
    """
    refuse_kind(model)
    given = _contiguous(example_of(model, example, home_of(model.parameters())))
    with random_states_kept([*model.parameters(), *model.buffers(), *given.tensors]), without_fast_path():
        behaviour = behaviour_of(training_copy(model), given)
        return _cut(model, given, behaviour, followed(model, given))


def _contiguous(given: Arguments) -> Arguments:
    return replace(given, tensors=tuple(value.detach().contiguous() for value in given.tensors))


def _cut(model: nn.Module, given: Arguments, behaviour: Behaviour, graph: Graph) -> LayeredModel:
    name = type(model).__name__
    sink_weights(graph.module.graph)
    _use_own_buffers(graph.module, model)
    layout = layout_of(graph.module)
    with left_as_it_was([graph.module], given.tensors):
        measured = measure(graph.module, given.tensors, repeats=0)
    changed = [model.get_buffer(name) for name in behaviour.changed]
    places = choose(layout, cuttable(layout, measured, graph.module, changed), measured, graph.module, model)
    if not places and graph.whole:
        raise CutError(
            name, f"no place to cut is left beside {', '.join(sorted(graph.whole))}, which cannot be divided"
        )
    modules = build_pieces(graph.module, layout, places, _tensor_names(model), graph.output)
    trial = _checked(model, modules, given, behaviour)
    held = held_by(model, modules)
    names = names_of(model, [parameters for parameters, _ in held])
    layers = tuple(
        ModelLayer(of_layer, module, *tensors, outputs)
        for of_layer, module, tensors, outputs in zip(names, modules, held, [*trial.crossings, None], strict=True)
    )
    inputs = tuple(Crossing(tuple(value.shape), value.dtype, False) for value in given.tensors)
    fitting = Fitting(model, given, _tried(model, modules, given, graph.limits))
    return LayeredModel(name, layers, inputs, digest_of(inputs, layers), fitting)


def _use_own_buffers(module: fx.GraphModule, model: nn.Module) -> None:
    """Replace the buffers of the copy that was followed by the model's own."""
    own = dict(model.named_buffers(remove_duplicate=False))
    for name, _ in list(module.named_buffers(remove_duplicate=False)):
        if name in own:
            path, _, last = name.rpartition(".")
            module.get_submodule(path)._buffers[last] = own[name]


def _tensor_names(model: nn.Module) -> frozenset[str]:
    own = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return frozenset(name for name, _ in own)


def _checked(model: nn.Module, modules: Sequence[nn.Module], given: Arguments, behaviour: Behaviour) -> Trial:
    """Run the layers, and return the trial. Raises CutError if anything differs from the whole model."""
    name = type(model).__name__
    with left_as_it_was([model, *modules], given.tensors):
        before = [{key: value.clone() for key, value in module.named_buffers()} for module in modules]
        try:
            trial = run_chain(modules, tuple(value.clone() for value in given.tensors))
        except Exception as error:  # operations of the model may raise anything
            raise CutError(name, f"its layers raise {type(error).__name__}: {error}") from error
        check_buffers(name, modules, before)
        buffers = {key: (behaviour.buffers[key], value) for key, value in model.named_buffers()}
        parameters = {id(value): key for key, value in model.named_parameters()}
        wrong = difference_between(behaviour.trial, trial, parameters, buffers)
    if wrong is not None:
        raise CutError(name, f"followed by torch.export, {wrong}")
    return trial


def _tried(model: nn.Module, modules: Sequence[nn.Module], given: Arguments, limits: Limits) -> Limits:
    """Compare other numbers of rows than the example's with the whole model, and narrow the limits accordingly."""
    num_rows = given.tensors[0].shape[:1]

    def holds(change: Any) -> bool | None:
        tensors = tuple(change(value) if value.shape[:1] == num_rows else value for value in given.tensors)
        try:
            whole = _output(training_copy(model), given, tensors)
        except Exception:  # the model may not take such a batch
            return None
        try:
            return outputs_agree(whole, _chain_output(model, modules, tensors))
        except Exception:  # operations of the model may raise anything
            return False

    fits = Fitting(model, given, replace(limits, least_rows=1))
    one, more = (lambda value: value[:1]), (lambda value: torch.cat([value, value[-1:]]))
    if not limits.exact and _takes(fits, given, num_rows, more) and holds(more) is False:
        limits = replace(limits, exact=True)
    if not limits.exact and _takes(fits, given, num_rows, one) and holds(one):
        limits = replace(limits, least_rows=1)
    return limits


def _takes(fits: Fitting, given: Arguments, num_rows: Sequence[int], change: Any) -> bool:
    sizes = tuple(tuple(change(value).shape if value.shape[:1] == num_rows else value.shape) for value in given.tensors)
    return bool(num_rows) and fits.problem(sizes) is None


def _output(model: nn.Module, given: Arguments, tensors: Tensors) -> Any:
    with left_as_it_was([model], tensors), torch.no_grad():
        return without_objects(given.call(model, [value.clone() for value in tensors]))


def _chain_output(model: nn.Module, modules: Sequence[nn.Module], tensors: Tensors) -> Any:
    with left_as_it_was([model, *modules], tensors), torch.no_grad():
        values: Any = tuple(value.clone() for value in tensors)
        for module in modules:
            values = module(*values)
        return values
