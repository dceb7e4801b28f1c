"""Tells in which part of a model and in which line of the user's code an error was raised."""

from __future__ import annotations

from torch import nn

from ..user_code import place_of_error


def path_of_error(model: nn.Module, error: BaseException) -> str:
    """Return the path of the innermost part whose code raised; empty for the model itself, or if none is known."""
    paths = {id(part): path for path, part in model.named_modules()}
    path, trace = "", error.__traceback__
    while trace is not None:
        path = paths.get(id(trace.tb_frame.f_locals.get("self"))) or path
        trace = trace.tb_next
    return path


def place_in(model: nn.Module, error: BaseException) -> str:
    """Return the path of the part whose code raised, with a file and a line; what is unknown is left out."""
    path, line = path_of_error(model, error), place_of_error(error)
    return f"{path} ({line})" if path and line else path or line
