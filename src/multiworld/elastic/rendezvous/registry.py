"""The kinds of rendezvous by the names that ``--rdzv-backend`` takes; other packages add theirs by an entry point."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib import metadata

from ..job.options import JobOptions
from .base import Rendezvous

GROUP = "multiworld.rendezvous"
Factory = Callable[[JobOptions], "tuple[Rendezvous, str]"]
"""Returns the rendezvous, and the numeric address at which other agents reach this one. May block, for DNS."""

BUILT_IN = {
    "embedded": "multiworld.elastic.rendezvous.embedded:from_options",
    "c10d": "multiworld.elastic.rendezvous.embedded:from_options",  # as torchrun calls it
    "static": "multiworld.elastic.rendezvous.embedded:from_options",  # the same, with node ranks from the user
    "etcd": "multiworld.elastic.rendezvous.etcd:from_options",
    "etcd-v2": "multiworld.elastic.rendezvous.etcd:from_options",  # torchrun's names for its two, both of etcd's v2 API
}


def names() -> list[str]:
    return sorted({*BUILT_IN, *(entry.name for entry in metadata.entry_points(group=GROUP))})


def find_rendezvous(name: str) -> Factory:
    """Return what makes a rendezvous of that kind. Raises ValueError for a name that nobody has registered."""
    if name in BUILT_IN:
        module, _, factory = BUILT_IN[name].partition(":")
        found: Factory = getattr(importlib.import_module(module), factory)
        return found
    for entry in metadata.entry_points(group=GROUP, name=name):
        loaded: Factory = entry.load()
        return loaded
    raise ValueError(f"--rdzv-backend {name}: there is no such rendezvous; there are {', '.join(names())}")
