"""Which revision of the roster each agent has: the coordinator sends the changes since, or else the whole roster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from ..job.roster import Roster, change_between, changed
from .messages import RosterChanged, RosterTold, Welcome
from .outbox import Outbox, Outgoing

News = RosterTold | RosterChanged
NOTHING = 0  # no revision: who knows this one is told the whole roster


class Mailroom:
    """The coordinator's. Some agents are told of the roster in full, and all others what it says ``abridged``."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._revision = 0
        self._rosters: dict[int, Roster] = {}  # by revision: the last of both kinds, and those that agents have
        self._last: dict[bool, int] = {}  # the revision of the last that is full, and of the last that is not
        self._known: dict[str, int] = {}  # the revision that each agent has, of those that take changes
        self._in_full: set[str] = set()  # of these agents, those that are told all of it

    def welcome(
        self,
        agent: str,
        roster: Callable[[], Roster],
        *,
        in_full: bool,
        takes_changes: bool,
        is_told_soon: bool = False,
    ) -> tuple[Roster, int]:
        """Return what an agent is told with its welcome, and its revision.

        ``is_told_soon``: of what is new, with others. So those that come together have one revision, not one each.
        """
        last = None if in_full or not is_told_soon else self._last.get(False)
        revision = self._revise(roster(), in_full=in_full) if last is None else last
        self.forget(agent)
        if takes_changes:
            self._learns(agent, revision, in_full=in_full)
        return self._rosters[revision], revision

    def forget(self, agent: str) -> None:
        self._known.pop(agent, None)
        self._in_full.discard(agent)

    def tell(self, agents: Iterable[str], roster: Roster, *, in_full: Collection[str]) -> None:
        """Tell each of these what it does not know yet. ``in_full``: who is told all of it."""
        readers: dict[bool, list[str]] = defaultdict(list)
        for agent in agents:
            readers[agent in in_full].append(agent)
        for is_full, group in readers.items():
            revision = self._revise(roster, in_full=is_full)
            (self._in_full.update if is_full else self._in_full.difference_update)(group)
            whole = [agent for agent in group if agent not in self._known]
            if whole:
                self._outbox.post_later(partial(self._whole, whole, revision))
            if any(self._known.get(agent, revision) != revision for agent in group):
                self._outbox.post_later(partial(self._changes, group, is_full))
        self._rosters = {
            each: self._rosters[each] for each in {*self._last.values(), *self._known.values()} - {NOTHING}
        }

    def tell_whole(self, agent: str, roster: Roster, *, in_full: bool) -> None:
        """It has lost track of the changes."""
        self._revise(roster, in_full=in_full)
        self._learns(agent, NOTHING, in_full=in_full)
        self._outbox.post_later(partial(self._changes, (agent,), in_full))

    def _learns(self, agent: str, revision: int, *, in_full: bool) -> None:
        self._known[agent] = revision
        (self._in_full.add if in_full else self._in_full.discard)(agent)

    def _whole(self, agents: Sequence[str], revision: int) -> Outgoing | None:
        """Make what agents are told that take no changes."""
        if revision not in self._rosters:  # a later one is told soon
            return None
        return Outgoing(agents, self._news(None, revision))

    def _changes(self, agents: Sequence[str], is_full: bool) -> Outgoing | None:
        """Make what brings these to the last revision, first those of them that know the same one, then the others.

        What they know is looked at now, and not when this was posted: meanwhile they may have come anew, or have been
        told by what was posted before.
        """
        last = self._last[is_full]
        behind = [
            agent for agent in agents if self._known.get(agent, last) != last and (agent in self._in_full) == is_full
        ]
        if not behind:
            return None
        since = self._known[behind[0]]
        readers = [agent for agent in behind if self._known[agent] == since]
        self._known.update(dict.fromkeys(readers, last))
        return Outgoing(readers, self._news(since or None, last), then=partial(self._changes, behind, is_full))

    def _revise(self, roster: Roster, *, in_full: bool) -> int:
        told = roster if in_full else roster.abridged()
        last = self._last.get(in_full)
        if last is not None and self._rosters[last] == told:
            return last
        self._revision += 1
        self._rosters[self._revision] = told
        self._last[in_full] = self._revision
        return self._revision

    def _news(self, since: int | None, revision: int) -> News:
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
