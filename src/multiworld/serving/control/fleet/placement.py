"""Decide on which host the next member of a stage runs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from .members import Member


@dataclass(kw_only=True)
class HostInfo:
    """One host as its process introduced it. ``live``: there is a link to it. ``leaving``: it ends its members.
    ``serves``: the controller is one of them. ``lost_at``: when the link to it ended last.

    ``unfit``: the stages whose members cannot run there, as one of them found, and why.
    """

    name: str
    address: str
    capacity: int
    live: bool = True
    leaving: bool = False
    serves: bool = False
    lost_at: float = 0.0
    unfit: dict[str, str] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    """By stage, how many of its members have ended there in a row before they served."""

    def failed(self, stage: str) -> None:
        """A member of a stage came to its end here, or to nothing, before it served."""
        self.failures[stage] = self.failures.get(stage, 0) + 1


def place(
    stage: str, allowed: Collection[str], hosts: Iterable[HostInfo], members: Iterable[Member]
) -> HostInfo | None:
    """Return the live, fit host with the fewest of this stage, then with the lowest load; None if there is none.

    Each that failed there counts as two that are there.

    ``allowed``: names or addresses of hosts; empty: any.
    """
    running = list(members)

    def burden(host: HostInfo) -> tuple[int, float, str]:
        there = [member for member in running if member.host == host.name]
        same = sum(member.stage == stage for member in there)
        return same + 2 * host.failures.get(stage, 0), len(there) / max(host.capacity, 1), host.name

    there = [host for host in hosts if host.live and not host.leaving and stage not in host.unfit]
    fitting = [host for host in there if not allowed or host.name in allowed or host.address in allowed]
    return min(fitting, key=burden, default=None)
