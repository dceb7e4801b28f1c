"""Pages that mkdocs makes while it builds: the command line as its own help says it, the API from the docstrings."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from unittest import mock

from multiworld.cli.main import COMMANDS, main
from multiworld.cli.serve import VERBS
from multiworld.cli.train import VERBS as OF_TRAIN

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

WIDTH = "80"
OF_SERVE = (*VERBS, "watch", "join")

API = {
    "worlds": ("Worlds", "One process, many worlds.", ["multiworld.WorldManager", "multiworld.World"]),
    "errors": ("Errors", "All errors that are raised or published.", ["multiworld.errors"]),
    "events": ("Events", "What `WorldManager.events()` yields.", ["multiworld.events"]),
    "channels": ("Channels", "What a channel of your own implements.", ["multiworld.channel.base"]),
    "distributed": ("Process-group mode", "One default group, and blocking functions.", ["multiworld.distributed"]),
    "serving": ("Elastic serving", "Pipelines of stages, and what they are served with.", ["multiworld.serving"]),
    "training": ("Resilient training", "Replicas that train on while processes die.", ["multiworld.training"]),
    "remote": ("Remote tensors", "Tensors on other processes, as plain PyTorch code.", ["multiworld.remote"]),
    "testing": ("Testing", "Start, kill, stop and cut off workers.", ["multiworld.testing"]),
}
"""Of each page: its title, a line about it, and what it shows; a module stands for the names in its ``__all__``."""


NOT_FOR_USERS = {
    "multiworld.World": (
        "abandon.*|activate|break_with|change|deliver|keep_reading|on_broken|prepare|soon|use_channel"
        "|leave_blocking|wait_broken_blocking|wait_for|wait_thread"
    ),
    "multiworld.WorldManager": "discard|world_aborted|world_breaks",
}
"""What worlds and their manager call of each other."""
WITH_INHERITED = {"multiworld.WorldManager"}
"""Users see one class: today's manager, and what programs for multiworld 0.2.x call."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    pages = {"command-line": command_line(), **{name: "\n".join(api_page(name)) for name in API}}
    for name, text in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def command_line() -> str:
    """Return the page of all commands: the help text of each, as a terminal of 80 columns shows it."""
    parts = ["# Command line", "", "What `multiworld COMMAND --help` prints.", ""]
    for command in COMMANDS:
        parts += [f"## multiworld {command}", "", "```text", help_of([command]), "```", ""]
        for verb in {"nodes": ("serve",), "serve": OF_SERVE, "train": OF_TRAIN}.get(command, ()):
            parts += [f"### multiworld {command} {verb}", "", "```text", help_of([command, verb]), "```", ""]
    return "\n".join(parts)


def help_of(command: Sequence[str]) -> str:
    printed = io.StringIO()
    with (
        mock.patch.dict(os.environ, {"COLUMNS": WIDTH, "NO_COLOR": "1"}),
        contextlib.redirect_stdout(printed),
        contextlib.suppress(SystemExit),
    ):
        main([*command, "--help"])
    text = printed.getvalue().strip()
    if not text.startswith("usage:"):
        raise RuntimeError(f"multiworld {' '.join(command)} --help printed no help: {text[:100]!r}")
    return text


def api_page(name: str) -> Iterator[str]:
    title, about, shown = API[name]
    yield from (f"# {title}", "", about, "")
    for each in shown:
        for path in names_of(each):
            yield f"::: {path}"
            if path in NOT_FOR_USERS:
                yield from ("    options:", f"      filters: ['!^_', '!^({NOT_FOR_USERS[path]})$']")
            if path in WITH_INHERITED:
                yield "      inherited_members: true"
            yield ""


def names_of(path: str) -> list[str]:
    """Return the paths of what a module exports, classes and functions alone; of anything else, its own path."""
    try:
        module: Any = importlib.import_module(path)
    except ModuleNotFoundError:
        return [path]
    exported = {name: getattr(module, name) for name in module.__all__}
    return [f"{path}.{name}" for name, each in exported.items() if inspect.isclass(each) or inspect.isroutine(each)]
