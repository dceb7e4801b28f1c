"""Loads the pipeline that a command line names."""

from __future__ import annotations

import os
from typing import Any

from .document import Document
from .infscale import is_job, read_job
from .models import import_attribute
from .pipeline_file import PipelineFile, read_pipeline
from .problems import ConfigError

FILES = (".yaml", ".yml", ".json")
MAX_BYTES = 4 << 20
DEFAULT_ATTRIBUTE = "pipeline"


def load_pipeline(target: str) -> Any:
    """Return what ``app.py:pipeline`` or ``package.module:pipeline`` names, or the PipelineFile of ``file.yaml``.

    Without ``:pipeline`` it is called ``pipeline``. Modules are looked up in the file's folder, or in the working
    folder, first. Raises ConfigError for what is not there or not usable; what the user's module raises is passed on.
    """
    if target.endswith(FILES):
        return read_file(target)
    name, _, attribute = target.rpartition(":") if ":" in target else (target, "", "")
    attribute = attribute or DEFAULT_ATTRIBUTE
    if name.endswith(".py"):
        return _from_program(name, attribute)
    if not name or os.sep in name:
        raise ConfigError(
            target, [" expected 'app.py:pipeline', 'package.module:pipeline', or a .yaml, .yml or .json file"]
        )
    return import_attribute(f"{name}:{attribute}", os.getcwd())


def read_file(path: str) -> PipelineFile:
    """Read a file of our own format, or a job file of InfScale. Imports nothing that it names. Raises ConfigError."""
    try:
        if os.path.getsize(path) > MAX_BYTES:
            raise ConfigError(path, [f" has more than {MAX_BYTES} bytes"])
        with open(path, encoding="utf-8") as file:
            document = Document.parse(path, file.read())
    except OSError as error:
        raise ConfigError(path, [f" cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError as error:
        raise ConfigError(path, [f" is not UTF-8: {error.reason} at byte {error.start}"]) from None
    return read_job(document) if is_job(document.value) else read_pipeline(document)


def _from_program(path: str, attribute: str) -> Any:
    if not os.path.isfile(path):
        raise ConfigError(path, [" there is no such file"])
    folder, name = os.path.split(os.path.abspath(path))
    stem = name.removesuffix(".py")
    if not stem.isidentifier():
        raise ConfigError(path, [f" cannot be imported: {stem!r} is no name of a module"])
    module = import_attribute(f"{stem}:__spec__", folder)
    origin = None if module is None else module.origin
    if not origin or not os.path.isfile(origin) or not os.path.samefile(origin, path):  # or "built-in", or "frozen"
        raise ConfigError(path, [f" is hidden by another module called {stem!r}; rename the file"])
    return import_attribute(f"{stem}:{attribute}", folder)
