"""Refuses models that cannot be cut as they are: wrappers of another model, and models without values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx, nn
from torch.nn.parameter import is_lazy

MERGED = "DataParallel", "DistributedDataParallel", "AveragedModel"


def check_kind(module: object) -> None:
    """Raise TypeError for what is no module, ValueError for a module that cannot be cut. The text says what to do."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {_named(module)}{_advice(module)}")
    for path, part in module.named_modules():
        what = type(part).__name__ if not path else f"{type(module).__name__} has a part, {path!r}, that"
        model = f"model.{path}" if path else "model"
        reason = _reason(part, model)
        if reason:
            raise ValueError(f"{what} cannot be cut: {reason}")
    if type(module).forward is nn.Module.forward and "forward" not in vars(module):
        raise ValueError(
            f"{type(module).__name__} cannot be cut: it has no forward; give a module that calls its parts"
        )


def check_values(module: nn.Module, name: str) -> None:
    """Raise ValueError if a parameter or buffer is on the meta device. ``name``: what the user calls the module.

    A lazy one gets its values when the module is called with an example.
    """
    for path, part in module.named_modules():
        reason = _reason_of_meta(part, name)
        if reason:
            raise ValueError(f"{type(part).__name__}{f' {path!r}' if path else ''}: {reason}")


def _reason(part: nn.Module, model: str) -> str:
    kind = type(part)
    if kind.__module__.startswith("torch._dynamo") and "_orig_mod" in part._modules:
        return f"torch.compile wraps it; give the module that it wraps, {model}._orig_mod"
    if isinstance(part, torch.jit.ScriptModule):
        return (
            "torch.jit compiled it, and what it wraps is no Python any more that could be followed; give the module "
            "that torch.jit.script or torch.jit.trace was called with"
        )
    if isinstance(part, fx.GraphModule) and "eval" in vars(part):
        return "torch.export made it, for one form of call and without modes; give the module that was exported"
    if _is_sharded(part):
        return (
            "its parameters are shards of those of several processes (FSDP or DTensor); gather them "
            "(torch.distributed.checkpoint.state_dict.get_model_state_dict with full_state_dict=True), and load them "
            "into a plain module"
        )
    if kind.__module__.startswith("torch.") and kind.__name__ in MERGED:
        return f"it wraps another module; give that one, {model}.module"
    return _reason_of_values(part, model) or _reason_of_hooks(part)


def _is_sharded(part: nn.Module) -> bool:
    is_wrapper = any(base.__name__ in ("FullyShardedDataParallel", "FSDPModule") for base in type(part).__mro__)
    return is_wrapper or any(
        type(value).__module__.startswith("torch.distributed") for value in part.parameters(recurse=False)
    )


def _reason_of_values(part: nn.Module, model: str) -> str:
    for name, value in _values(part):
        if is_lazy(value):
            return f"its {name!r} has no shape yet, for it is lazy; call the model with an example first"
    return _reason_of_meta(part, model)


def _reason_of_meta(part: nn.Module, model: str) -> str:
    for name, value in _values(part):
        if not is_lazy(value) and value.is_meta:
            return (
                f"its {name!r} is on the meta device and has no values; call {model.partition('.')[0]}.to_empty(device="
                "'cpu') and load a state_dict"
            )
    return ""


def _values(part: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]


def _reason_of_hooks(part: nn.Module) -> str:
    for hook in _hooks(part):
        if not _is_of_torch(hook):
            return (
                f"it has a forward hook, {_named(hook)}: it would be called while the model is measured, and then in "
                "the processes that serve it. Remove it (the handle of register_forward_hook has remove()), or do in "
                "forward what it does"
            )
    return ""


def _hooks(part: nn.Module) -> Iterator[Callable[..., Any]]:
    yield from part._forward_pre_hooks.values()
    yield from part._forward_hooks.values()


def _is_of_torch(hook: Callable[..., Any]) -> bool:
    """Return whether PyTorch made a hook, as ``weight_norm`` and pruning do."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    owner = getattr(hook, "__self__", hook)
    modules = [getattr(hook, "__module__", ""), *(base.__module__ for base in type(owner).__mro__)]
    return any(name == "torch" or name.startswith("torch.") for name in map(str, modules))


def _named(value: object) -> str:
    name = getattr(value, "__qualname__", None)
    kind = type(value).__name__
    return f"{'an' if kind[:1] in 'AEIOUaeiou' else 'a'} {kind}" if name is None else f"the {kind} {name}"


def _advice(value: object) -> str:
    if hasattr(value, "graph_module") and callable(getattr(value, "module", None)):
        return "; give what its module() returns"
    if isinstance(value, type) and issubclass(value, nn.Module):
        return "; make one of it"
    if callable(value):
        return "; what torch.func or torch.compile makes of functions is none: write a module whose forward calls it"
    return ""
