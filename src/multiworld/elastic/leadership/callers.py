"""The agents that have called this one to report for duty, and wait until it knows who coordinates."""

from __future__ import annotations

from ...world.links.link import Link
from ...world.links.peers import PeerInfo
from .links import AgentLinks
from .messages import Attach, Redirect


class Callers:
    """Progress thread only. By link: how each of them has introduced itself."""

    def __init__(self, links: AgentLinks) -> None:
        self._links = links
        self._waiting: dict[Link, Attach] = {}

    def __contains__(self, link: Link) -> bool:
        return link in self._waiting

    @property
    def introductions(self) -> list[Attach]:
        return list(self._waiting.values())

    @property
    def ids(self) -> set[str]:
        return {attach.agent.id for attach in self._waiting.values()}

    @property
    def are_stale(self) -> bool:
        """Whether each of them was away itself."""
        return all(attach.stale for attach in self._waiting.values())

    def wait(self, link: Link, attach: Attach) -> None:
        self._waiting[link] = attach

    def forget(self, link: Link) -> None:
        self._waiting.pop(link, None)

    def take_all(self) -> dict[Link, Attach]:
        """Return those that wait; none does afterwards."""
        taken, self._waiting = self._waiting, {}
        return taken

    def redirect(self, link: Link, coordinator: PeerInfo) -> None:
        """Send one of them there."""
        self.forget(link)
        self._links.tell(link, Redirect(host=coordinator.host, port=coordinator.port))

    def redirect_all(self, coordinator: PeerInfo) -> None:
        for link in list(self._waiting):
            self.redirect(link, coordinator)
