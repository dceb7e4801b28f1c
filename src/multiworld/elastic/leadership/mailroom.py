"""Which revision of the roster each agent has: the coordinator sends the changes since, or else the whole roster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from ..job.notes import change_from_fields, change_to_fields, roster_from_fields, roster_to_fields
from ..job.roster import Roster, change_between, changed

__all__ = ["TAKES_CHANGES", "Mailroom", "RosterCopy"]

Note = dict[str, Any]
TAKES_CHANGES = "takes_roster_changes"
"""An agent that can apply them says so when it introduces itself; any other is told the whole roster each time."""


class Mailroom:
    """The coordinator's. ``send(agent, note)`` reaches an agent that is attached; what is sent twice is one object."""

    def __init__(self, send: Callable[[str, Note], None]) -> None:
        self._send = send
        self._revision = 0
        self._rosters: dict[int, Roster] = {}  # by revision: the last, and those that agents have
        self._known: dict[str, int] = {}  # the revision that each agent has, of those that take changes

    def welcome(self, agent: str, introduction: Note, roster: Roster) -> Note:
        """Return what a welcome says of the roster."""
        revision = self._revise(roster)
        self._known.pop(agent, None)
        if introduction.get(TAKES_CHANGES):
            self._known[agent] = revision
        return {"roster": roster_to_fields(roster), "revision": revision}

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
            note = self._note(since, revision)
            for agent in readers:
                if since is not None:
                    self._known[agent] = revision
                self._send(agent, note)
        self._rosters = {each: self._rosters[each] for each in {revision, *self._known.values()}}

    def tell_whole(self, agent: str, roster: Roster) -> None:
        """It has lost track of the changes."""
        revision = self._revise(roster)
        self._known[agent] = revision
        self._send(agent, self._note(None, revision))

    def _revise(self, roster: Roster) -> int:
        if self._rosters.get(self._revision) != roster:
            self._revision += 1
            self._rosters[self._revision] = roster
        return self._revision

    def _note(self, since: int | None, revision: int) -> Note:
        after = self._rosters[revision]
        if since is not None:
            change = change_between(self._rosters[since], after, since=since, revision=revision)
            if change is not None:
                return {"say": "roster change", "change": change_to_fields(change)}
        return {"say": "roster", "roster": roster_to_fields(after), "revision": revision}


class RosterCopy:
    """A follower's: what the coordinator has told it."""

    def __init__(self) -> None:
        self.roster: Roster | None = None
        self._revision = 0

    def take(self, note: Note) -> bool:
        """Take a note with a roster, or with a change; False: the roster must be told whole."""
        if "change" not in note:
            self.roster, self._revision = roster_from_fields(note["roster"]), int(note.get("revision", 0))
            return True
        change = change_from_fields(note["change"])
        if self.roster is None or change.since != self._revision:
            return False
        self.roster, self._revision = changed(self.roster, change), change.revision
        return True
