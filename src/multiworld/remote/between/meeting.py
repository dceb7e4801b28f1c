"""Where several nodes meet, and under which name: decided from what is known of each. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MAX_NAME: Final = 120


@dataclass(frozen=True, kw_only=True)
class Member:
    """One node. ``store``: where it forms worlds; None: at the launcher's store. ``generation``: of its session."""

    number: int
    generation: int
    store: str | None


def name_of(members: Sequence[Member], attempt: int) -> str:
    """Return a name that no other world of nodes has: a node that is replaced has another generation."""
    shown = "-".join(f"{member.number}.{member.generation}" for member in members)
    if len(shown) > MAX_NAME:
        shown = f"{len(members)}-{hashlib.sha256(shown.encode()).hexdigest()[:32]}"
    return f"remote-between-{shown}-{attempt}"


def store_of(members: Sequence[Member], launchers: str | None) -> str | None:
    """Return the URL of the store where they meet; None: each knows the launcher's.

    ``launchers``: the URL of that, for a node that the launcher did not start.
    """
    stores = [member.store for member in members]
    if None not in stores:
        return stores[0]
    return None if all(store is None for store in stores) else launchers
