"""What torchrun's agent is told of the others where its generation is lost before they could say it. Pure.

That agent knows no other way out of the exchange of ranks than to end, with the whole host. So it hears that all hosts
are as its own is, starts its workers, and stops them at its next look: as where the loss comes a moment later. Nobody
is there whom they could meet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from ...wire.messages import Json

SAID, ASSIGNED = "torchelastic/role_info/", "torchelastic/assigned_ranks/"


class RankExchange:
    """Reads what the agent of this host says in the store, by the names that PyTorch has for it."""

    def __init__(self, num_nodes: int) -> None:
        self._num_nodes = num_nodes
        self._own: Mapping[str, Json] | None = None
        self._num_workers = 0  # of each host

    def said(self, key: str, value: str | bytes) -> None:
        if key.startswith(SAID):
            self._own = own = dict(json.loads(value))
            self._num_workers = int(own["local_world_size"])

    def answer(self, key: str) -> bytes | None:
        """Return what stands for the value that will not come; None for keys of which nothing is known."""
        if self._own is None:
            return None
        if key.startswith(SAID):
            return json.dumps({**self._own, "rank": int(key.removeprefix(SAID))}).encode()
        if key.startswith(ASSIGNED):
            first, all_workers = (
                int(key.removeprefix(ASSIGNED)) * self._num_workers,
                self._num_nodes * self._num_workers,
            )
            return json.dumps([first, all_workers, first, all_workers]).encode()
        return None
