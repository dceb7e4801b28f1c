"""Finds what a file names: an attribute of a module, or a model of Hugging Face with an example made up for it."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .problems import ConfigError, did_you_mean

if TYPE_CHECKING:
    from torch import nn

Resolver = Callable[[str, str | None, str], "tuple[nn.Module, Any]"]
"""Takes the name of a model, of an example (or None) and the file's folder; returns the model and a payload."""
EXAMPLE_ROWS = 2
EXAMPLE_LENGTH = 32
NO_TRANSFORMERS = (
    " is taken for a model of Hugging Face, which needs transformers (pip install transformers). "
    "A model of your own is named 'package.module:attribute'"
)


def import_attribute(target: str, folder: str) -> Any:
    """Return ``package.module:attribute``, the module looked up in a folder first, as if a program there ran.

    Raises ConfigError if it is not there; what the module itself raises is passed on.
    """
    name, _, attributes = target.partition(":")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        value: Any = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(target, [f" no module {error.name!r}, in {folder} or where Python looks"]) from None
    for attribute in attributes.split("."):
        if not hasattr(value, attribute):
            names = [other for other in vars(value) if not other.startswith("_")]
            raise ConfigError(target, [f" {name} has no {attribute!r}, {did_you_mean(attribute, names)}"])
        value = getattr(value, attribute)
    return value


def resolve_model(model: str, example: str | None, folder: str) -> tuple[nn.Module, Any]:
    """Return a model and an example for it. What is a class or a function is called without arguments.

    A name without ``:`` is one of Hugging Face's, a folder or a repository, and needs ``transformers``.
    """
    if ":" in model:
        if example is None:
            raise ConfigError(model, [" needs an example: a request's payload, named as 'package.module:attribute'"])
        module, payload = _made(import_attribute(model, folder)), resolve_example(example, folder)
    else:
        module, payload = _hugging_face(model)
        payload = resolve_example(example, folder) if example else payload
    if not hasattr(module, "state_dict"):
        raise ConfigError(model, [f" is a {type(module).__name__}, expected an nn.Module or what makes one"])
    return module, payload


def resolve_example(example: str, folder: str) -> Any:
    """Return what is named, or what it returns, if it is a class or a function."""
    return _made(import_attribute(example, folder))


def _made(value: Any) -> Any:
    is_maker = inspect.isclass(value) or inspect.isroutine(value)
    return value() if is_maker else value


def _hugging_face(name: str) -> tuple[nn.Module, Any]:
    try:
        import transformers  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise ConfigError(name, [NO_TRANSFORMERS]) from None
    try:
        config = transformers.AutoConfig.from_pretrained(name)
        architecture = (config.architectures or ["AutoModel"])[0]
        config.use_cache = False  # a cache is state between calls, which no cut keeps
        module = getattr(transformers, architecture, transformers.AutoModel).from_pretrained(name, config=config)
    except (OSError, ValueError) as error:
        raise ConfigError(name, [f" cannot be loaded by transformers: {error}"]) from error
    return module, _example(module, config)


def _example(module: Any, config: Any) -> dict[str, Any]:
    import torch

    if module.main_input_name == "pixel_values":
        size = getattr(config, "image_size", 224)
        height, width = (size, size) if isinstance(size, int) else size
        return {"pixel_values": torch.zeros(EXAMPLE_ROWS, getattr(config, "num_channels", 3), height, width)}
    return {module.main_input_name: torch.zeros(EXAMPLE_ROWS, EXAMPLE_LENGTH, dtype=torch.int64)}
