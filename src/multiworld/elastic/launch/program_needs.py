"""Look at a program for what its workers will import, so that the fork server imports it once for all of them."""

from __future__ import annotations

import importlib.util
import re

from ...process.spawn.entrypoint import Entrypoint, EntrypointKind

TRAINING = re.compile(
    r"^\s*(?:from\s+multiworld\s+import\s.*\btraining\b|(?:from|import)\s+multiworld\.training\b)", re.M
)
TRAINING_MODULES = ("multiworld.training.job", "torch._dynamo")
"""torch imports the second one, which takes 2 s, when the first optimizer is made."""
PIPELINES = re.compile(r"^[^#\n]*\.pipeline\(", re.M)
PIPELINE_MODULE = "multiworld.training.pipeline.imports"
"""A second for each process that cuts a model; and a replacement is waited for."""
MAX_CHARACTERS = 1 << 20


def modules_needed(entrypoint: Entrypoint) -> tuple[str, ...]:
    """Return the modules that a program is known to import and that take long, if it is a Python file that trains."""
    if entrypoint.kind is not EntrypointKind.SCRIPT:
        return ()
    try:
        with open(entrypoint.target, encoding="utf-8", errors="replace") as file:
            text = file.read(MAX_CHARACTERS)
    except OSError:  # the worker says so
        return ()
    if TRAINING.search(text) is None:
        return ()
    modules = (*TRAINING_MODULES, *((PIPELINE_MODULE,) if PIPELINES.search(text) else ()))
    return tuple(module for module in modules if importlib.util.find_spec(module) is not None)
