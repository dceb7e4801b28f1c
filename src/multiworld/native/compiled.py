"""Which modules are compiled, and whether those that are loaded are compiled or are the sources: all, or none.

The modules that every message of a world or of serving goes through can be compiled to C by mypyc, from the same
sources that are interpreted elsewhere. ``setup.py`` does so where it can. What was compiled is used if it is of the
sources that lie here, which its name says; else the sources are. See ``docs/decisions/025-compiled-modules.md``.

This module imports nothing of the package: ``setup.py`` runs it where the package's requirements are missing.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

VARIABLE = "MULTIWORLD_NATIVE"
ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "multiworld"
SHIM_SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]
SUFFIX = "__mypyc"  # of the library that holds the code of all of them, as mypyc names it

MODULES = (
    "channel.nccl.stream",
    "channel.payload.small_message",
    "channel.payload.tensors",
    "channel.shared_memory.pipe_payloads",
    "channel.shared_memory.ring",
    "channel.stream.inbox",
    "channel.stream.message",
    "channel.stream.message_stream",
    "channel.stream.moving",
    "channel.stream.outbox",
    "channel.stream.sending",
    "channel.stream.shared_sending",
    "channel.stream.shared_stream",
    "remote.lane",
    "remote.node.executor",
    "remote.node.replies",
    "remote.protocol.elements",
    "remote.protocol.records",
    "remote.protocol.reply",
    "remote.session.answers",
    "remote.session.command_queue",
    "remote.session.fetcher",
    "remote.session.requests",
    "serving.flow.edge",
    "serving.flow.holder",
    "serving.flow.in_flight",
    "serving.flow.latencies",
    "serving.flow.node",
    "serving.flow.packets",
    "serving.flow.payloads",
    "serving.flow.retry",
    "serving.flow.routing",
    "serving.flow.suspicion",
    "serving.flow.turn",
    "serving.ingress.ingress",
    "serving.ingress.patience",
    "serving.ingress.requests",
    "serving.ingress.whereabouts",
    "serving.replica.batching",
    "serving.replica.black_box",
    "serving.replica.call_thread",
    "serving.replica.executor",
    "serving.replica.finished",
    "serving.replica.replica",
    "serving.replica.results",
    "serving.replica.rows",
    "wire.connection.connection",
    "wire.connection.frames",
    "wire.connection.low_water",
    "wire.connection.payload_wait",
    "wire.connection.watch",
    "wire.connection.write_queue",
    "wire.memory.copying",
    "wire.progress.interest",
    "wire.progress.operation",
    "wire.progress.spinning",
    "wire.progress.waiting",
    "wire.rate_limited_log",
    "world.operations.delivery",
)
"""Their names in the package."""

FOLDERS = ("channel", "remote", "serving/flow", "serving/ingress", "serving/replica", "wire", "world")
"""Whose sources they were compiled with: types of what those define are compiled in."""


def source_of(module: str) -> Path:
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


def group_name() -> str:
    """Return what the library of the compiled modules is called: of other sources, it has another name.

    All of ``FOLDERS`` counts. So does what the C is mended with.
    """
    digest = hashlib.sha256(Path(__file__).with_name("generated.py").read_bytes())
    for folder in FOLDERS:
        for source in sorted(ROOT.joinpath(folder).rglob("*.py")):
            digest.update(source.read_bytes())
    return f"{PACKAGE}_{digest.hexdigest()[:16]}"


class SourceFinder:
    """Finds the sources of the modules that would else be found compiled."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package, _, module = fullname.partition(".")
        if package != PACKAGE or module not in MODULES or not source_of(module).is_file():
            return None
        return importlib.util.spec_from_file_location(fullname, source_of(module))


def are_sources_wanted() -> bool:
    """Return whether the environment says that nothing is to be compiled, or used."""
    return os.environ.get(VARIABLE) in ("0", "core")


def why_not() -> str:
    """Return why the sources are to be used; empty: what was compiled is."""
    if are_sources_wanted():
        return f"{VARIABLE}={os.environ[VARIABLE]} in the environment"
    try:
        name = group_name() + SUFFIX
    except OSError as error:
        return f"the sources cannot be read: {error}"
    shims = (source_of(module).with_suffix(SHIM_SUFFIX) for module in MODULES)
    if importlib.util.find_spec(name) is None or not all(shim.is_file() for shim in shims):
        return "what lies here was not compiled, or of other sources: install the package again"
    try:
        importlib.import_module(name)
    except ImportError as error:
        return f"it does not load: {error}"
    return ""


def use() -> str:
    """Decide, before any of them is imported. Return why the sources are used; empty: what was compiled is."""
    reason = why_not()
    if reason and not any(isinstance(finder, SourceFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, SourceFinder())
    return reason
