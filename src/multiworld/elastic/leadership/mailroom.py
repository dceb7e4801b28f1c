"""Which revision of the roster each agent has: the coordinator sends the changes since, or else the whole roster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from ..job.roster import Roster, change_between, changed
from .messages import RosterChanged, RosterTold, Welcome

__all__ = ["Mailroom", "RosterCopy"]


class Mailroom:
    """The coordinator's. ``send(agent, message)`` reaches an attached agent; what is sent twice is one object."""

    def __init__(self, send: Callable[[str, RosterTold | RosterChanged], None]) -> None:
        self._send = send
        self._revision = 0
        self._rosters: dict[int, Roster] = {}  # by revision: the last, and those that agents have
        self._known: dict[str, int] = {}  # the revision that each agent has, of those that take changes

    def welcome(self, agent: str, roster: Roster, *, takes_changes: bool) -> int:
        """An agent is told the whole roster with its welcome; returns the revision."""
        revision = self._revise(roster)
        self._known.pop(agent, None)
        if takes_changes:
            self._known[agent] = revision
        return revision

    def forget(self, agent: str) -> None:
        self._known.pop(agent, None)

    def tell(self, agents: Iterable[str], roster: Roster) -> None:
        """Tell each of these what it does not know yet."""
        revision = self._revise(roster)
        by_revision: dict[int | None, list[str]] = defaultdict(list)
        for agent in agents:
            by_revision[self._known.get(agent)].append(agent)
        by_revision.pop(revision, None)
        for since, readers in by_revision.items():
            news = self._news(since, revision)
            for agent in readers:
                if since is not None:
                    self._known[agent] = revision
                self._send(agent, news)
        self._rosters = {each: self._rosters[each] for each in {revision, *self._known.values()}}

    def tell_whole(self, agent: str, roster: Roster) -> None:
        """It has lost track of the changes."""
        revision = self._revise(roster)
        self._known[agent] = revision
        self._send(agent, self._news(None, revision))

    def _revise(self, roster: Roster) -> int:
        if self._rosters.get(self._revision) != roster:
            self._revision += 1
            self._rosters[self._revision] = roster
        return self._revision

    def _news(self, since: int | None, revision: int) -> RosterTold | RosterChanged:
        after = self._rosters[revision]
        if since is not None:
            change = change_between(self._rosters[since], after, since=since, revision=revision)
            if change is not None:
                return RosterChanged(change=change)
        return RosterTold(roster=after, revision=revision)


class RosterCopy:
    """A follower's: what the coordinator has told it."""

    def __init__(self) -> None:
        self.roster: Roster | None = None
        self._revision = 0

    def take(self, news: Welcome | RosterTold | RosterChanged) -> bool:
        """Take the roster, or a change of it; False: it must be told whole."""
        if not isinstance(news, RosterChanged):
            self.roster, self._revision = news.roster, news.revision
            return True
        change = news.change
        if self.roster is None or change.since != self._revision:
            return False
        self.roster, self._revision = changed(self.roster, change), change.revision
        return True
