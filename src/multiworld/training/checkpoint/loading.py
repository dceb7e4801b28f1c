"""Take a state from a checkpoint: read it with DCP, compare it with the program's, and restore it between two steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata
from torch.distributed.tensor import DTensor, empty

from ..errors import CheckpointDamagedError, CheckpointMismatchError
from ..state import APART, StateDict, TrainingState
from .finding import Found, verify
from .flat import STRUCTURE, flatten, unflatten
from .staging import OF_ONE_WRITER

MOST_SHOWN = 5
MODELS, OPTIMIZERS = "model", "optimizer"

Like = Callable[[str, torch.Size], "DTensor | None"]


def load(found: Found, state: TrainingState, *, hashes: bool = True) -> None:
    """Restore the state, at any number of replicas. ``hashes``: read all files once before, and compare them.

    A tensor that is sharded in the program's state is filled with the shard of this process, wherever it was saved.
    Raises CheckpointDamagedError, or CheckpointMismatchError if the checkpoint is of another model or program: nothing
    has changed then. What a part's ``load_state_dict`` raises comes through; a loader with other settings does.
    """
    verify(found, hashes=hashes)
    current = state.capture()
    captured, apart = _read(found, _shards_of(state, current))
    captured["parts"].pop(APART, None)
    differences = compare(captured, current)
    if bool(apart) is not (state.apart is not None):
        differences.append("it is of pipelines" if apart else "it is not of pipelines, and this training has some")
    if differences:
        raise CheckpointMismatchError(found.path, tuple(differences))
    if state.apart is not None:
        try:
            state.apart.restore_all(apart)
        except ValueError as error:
            raise CheckpointMismatchError(found.path, (str(error),)) from error
    state.restore(captured)


def read(found: Found, like: Like = lambda name, shape: None) -> StateDict:
    """Return what ``TrainingState.restore`` takes. ``like``: where a sharded tensor is needed, returns one like it."""
    return _read(found, like)[0]


def _read(found: Found, like: Like) -> tuple[StateDict, StateDict]:
    """Return the state that one writer describes and, by name, what each writer had for itself."""
    reader = FileSystemReader(found.path)
    try:
        metadata = reader.read_metadata()
        leaves: StateDict = {name: _target(name, metadata, like) for name in metadata.state_dict_metadata}
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(leaves, metadata, True)
        reader.set_up_storage_reader(metadata, True)
        plan = reader.prepare_local_plan(planner.create_local_plan())
        plan = reader.prepare_global_plan(planner.create_global_plan([plan]))[0]
        reader.read_data(planner.finish_plan(plan), planner).wait()
        structure = leaves.pop(STRUCTURE)
        apart = {name.partition(".")[2]: each for name, each in leaves.items() if name.startswith(OF_ONE_WRITER)}
        return unflatten(structure, leaves), apart
    except (OSError, EOFError, KeyError, RuntimeError) as error:  # its bytes are what was written, or were not compared
        raise CheckpointDamagedError(found.path, ".metadata", f"it cannot be read ({error!r})") from error


def compare(captured: StateDict, current: StateDict) -> list[str]:
    """Return what keeps a state from another one's place: parts, parameters, shapes, groups of optimizers. Pure."""
    saved, wanted = captured["parts"], current["parts"]
    differences = _names("parts", saved, wanted)
    for part in sorted(set(saved) & set(wanted)):
        kind = part.partition(".")[0]
        if kind == MODELS:
            differences += _models(part, saved[part], wanted[part])
        elif kind == OPTIMIZERS:
            differences += _optimizers(part, saved[part], wanted[part])
    return differences


def _models(part: str, saved: StateDict, wanted: StateDict) -> list[str]:
    differences = _names(f"tensors of {part}", saved, wanted)
    shapes = [
        f"{name} has {_shape(saved[name])} in the checkpoint and {_shape(wanted[name])} here"
        for name in wanted
        if name in saved and _shape(saved[name]) != _shape(wanted[name])
    ]
    return differences + _shortened([f"{part}: {each}" for each in shapes])


def _optimizers(part: str, saved: StateDict, wanted: StateDict) -> list[str]:
    if "param_groups" not in saved or "param_groups" not in wanted:
        return []  # an optimizer of the program's own making; its load_state_dict decides
    then, now = ([len(group["params"]) for group in each["param_groups"]] for each in (saved, wanted))
    return [f"{part}: it had groups of {then} parameters, and has groups of {now}"] if then != now else []


def _names(of_what: str, saved: StateDict, wanted: StateDict) -> list[str]:
    missing, unknown = sorted(set(wanted) - set(saved)), sorted(set(saved) - set(wanted))
    differences = [f"{of_what} that the checkpoint lacks: {', '.join(_shortened(missing))}"] if missing else []
    return differences + ([f"{of_what} that are unknown here: {', '.join(_shortened(unknown))}"] if unknown else [])


def _shortened(names: list[str]) -> list[str]:
    return names if len(names) <= MOST_SHOWN else [*names[:MOST_SHOWN], f"and {len(names) - MOST_SHOWN} more"]


def _shape(value: Any) -> str:
    return f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}" if isinstance(value, Tensor) else "a value"


def _shards_of(state: TrainingState, current: StateDict) -> Like:
    """Return what finds the tensor of this program that says how a saved one is sharded here.

    The state of a new optimizer is still empty: what it has for a parameter is sharded like the parameter.
    """
    tensors = {name: leaf for name, leaf in flatten(current).leaves.items() if isinstance(leaf, DTensor)}
    parameters: dict[str, DTensor] = {}
    for part, optimizer in state.parts.items():
        groups = getattr(optimizer, "param_groups", ())
        ours = [parameter for group in groups for parameter in group["params"]]
        parameters |= {f"{part}.state.{index}": each for index, each in enumerate(ours) if isinstance(each, DTensor)}

    def like(name: str, shape: torch.Size) -> DTensor | None:
        found = tensors.get(name, parameters.get(name.rpartition(".")[0]))
        return found if found is not None and found.shape == shape else None

    return like


def _target(name: str, metadata: Metadata, like: Like) -> Any:
    """Return what DCP reads into: a tensor, of this process's shards if it is sharded here."""
    saved = metadata.state_dict_metadata[name]
    if isinstance(saved, BytesStorageMetadata):
        return ""  # any value: DCP puts another in its place
    sharded = like(name, saved.size)
    if sharded is None:
        return torch.empty(saved.size, dtype=saved.properties.dtype)
    return empty(
        saved.size, dtype=saved.properties.dtype, device_mesh=sharded.device_mesh, placements=sharded.placements
    )
