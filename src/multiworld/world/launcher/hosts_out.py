"""Which hosts have no part in the job any more, as its coordinator writes it into the job's store. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ...wire.messages import message

KEY = "multiworld/hosts-out"


@message("hosts_out")
@dataclass(frozen=True, kw_only=True)
class HostsOut:
    """``hosts``: their identities (``processes.vitals.host_identity``). What runs there can't go on without us.

    For the coordinator of this store had most of the agents on its side when it wrote that, and goes by the same rule
    as those elsewhere: without a majority, no agent serves a store, and without a store, no world is formed.
    """

    hosts: tuple[str, ...] = ()
