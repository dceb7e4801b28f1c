"""Changes of the roster that wait while others are told: in the end all agents have the last one of their kind."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.elastic.simulated_cluster import HandDrivenLoop
from multiworld.elastic.job.actions import Reset
from multiworld.elastic.job.roster import Roster, RosterEntry
from multiworld.elastic.leadership.mailroom import Mailroom, RosterCopy
from multiworld.elastic.leadership.messages import AgentMessage, RosterChanged, RosterTold
from multiworld.elastic.leadership.outbox import SLICE_S, Outbox
from multiworld.wire.progress.thread import ProgressThread

AGENTS = "abcdefgh"
STEPS = ("tell", "come", "come, and be told soon", "lose track", "turn")


class Agents:
    """A mailroom, and what its agents have been told. A turn of the loop sends two messages."""

    def __init__(self) -> None:
        times = count()
        self.loop = HandDrivenLoop()
        self.outbox = Outbox(cast(ProgressThread, self.loop), self._send, lambda: next(times) * SLICE_S / 3)
        self.mailroom = Mailroom(self.outbox)
        self.copies: dict[str, RosterCopy] = {}

    def _send(self, agent: str, message: AgentMessage) -> None:
        if isinstance(message, RosterTold | RosterChanged):
            assert self.copies[agent].take(message)

    def come(self, agents: str, roster: Roster, *, in_full: str = "", is_told_soon: bool = False) -> None:
        for agent in agents:
            self.outbox.forget(agent)
            told, revision = self.mailroom.welcome(
                agent, lambda: roster, in_full=agent in in_full, takes_changes=True, is_told_soon=is_told_soon
            )
            self.copies[agent] = RosterCopy()
            self.copies[agent].take(RosterTold(roster=told, revision=revision))

    def turn(self) -> None:
        if self.loop.due:
            self.loop.due.popleft()()

    @property
    def rosters(self) -> dict[str, Roster | None]:
        return {agent: copy.roster for agent, copy in self.copies.items()}


def roster_of(agents: str, *, num_events: int = 0) -> Roster:
    entries = tuple(RosterEntry(id=name, host="127.0.0.1", port=1) for name in agents)
    return Roster(
        term=1, coordinator="a", generation=1, store="s", members=entries, active=tuple(agents), num_events=num_events
    )


def test_an_agent_that_comes_while_others_are_told_leaves_none_of_them_behind() -> None:
    agents = Agents()
    agents.come("abc", roster_of("abc"))
    agents.outbox.post("abc" * 3, Reset())  # orders that take some turns of the loop
    agents.mailroom.tell("abc", roster_of("abc", num_events=1), in_full="")
    agents.come("d", roster_of("abcd", num_events=2), is_told_soon=True)
    agents.mailroom.tell("abcd", roster_of("abcd", num_events=3), in_full="")
    agents.loop.run()
    assert agents.rosters == dict.fromkeys("abcd", roster_of("abcd", num_events=3).abridged())


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from(AGENTS), st.sampled_from(["", "a", "abc", "fgh"]))))
def test_all_have_the_last_roster_of_their_kind_in_the_end(steps: list[tuple[str, str, str]]) -> None:
    agents = Agents()
    last = roster_of(AGENTS)
    agents.come(AGENTS, last)
    for number, (step, agent, in_full) in enumerate(steps):
        last = replace(last, num_events=number)
        if step == "tell":
            agents.mailroom.tell(AGENTS, last, in_full=in_full)
        elif step == "lose track":
            agents.mailroom.tell_whole(agent, last, in_full=agent in in_full)
        elif step == "turn":
            agents.turn()
        else:
            agents.come(agent, last, in_full=in_full, is_told_soon=step == "come, and be told soon")
    last = replace(last, num_events=len(steps))
    agents.mailroom.tell(AGENTS, last, in_full="ab")
    agents.loop.run()
    assert agents.rosters == {agent: last if agent in "ab" else last.abridged() for agent in AGENTS}
