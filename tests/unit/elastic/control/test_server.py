"""The control server of an agent, asked over its socket: with the coordinator here, elsewhere, lost, or nowhere."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import pytest

from multiworld.elastic.agent.agent import Agent
from multiworld.elastic.control import server as server_module
from multiworld.elastic.control.client import ControlError, Conversation, Session
from multiworld.elastic.control.messages import (
    Done,
    Drain,
    Events,
    EventsOf,
    Here,
    Kill,
    Lines,
    LogsOf,
    Scale,
    StatusOf,
    WhoIsHere,
)
from multiworld.elastic.control.questions import ENDING
from multiworld.elastic.control.server import ControlServer
from multiworld.elastic.job.actions import Die
from multiworld.elastic.job.history import History
from multiworld.elastic.job.job import Job
from multiworld.elastic.job.plan import JobPlan
from multiworld.elastic.job.status import JobStatus
from multiworld.elastic.leadership.coordinator import Coordinator
from multiworld.elastic.leadership.event_log import EventLog
from multiworld.elastic.leadership.messages import AgentMessage, Answered, Asked, Attach
from multiworld.elastic.logs.pump import LogPump
from multiworld.process.link import CallRefusedError
from multiworld.process.link.blocking import wait_for
from multiworld.process.link.envelope import pack_asked
from multiworld.wire.progress.thread import ProgressThread
from multiworld.world.links.link import Link
from tests.unit.elastic.job.test_job import agent as agent_info

pytestmark = pytest.mark.usefixtures("no_leaks")


class FakeLink:
    open = True


@dataclass
class Chief:
    """Where the coordinator is, as the test says; notes to other agents are kept."""

    coordinator: Coordinator | None = None
    superior: Link | None = None
    told: list[tuple[Link, Asked | Answered]] = field(default_factory=list)
    heard: threading.Event = field(default_factory=threading.Event)

    def tell(self, link: Link, message: Asked | Answered) -> None:
        self.told.append((link, message))
        self.heard.set()


class Held:
    """A worker of which only the output is wanted."""

    def __init__(self, rank: int, lines: list[str]) -> None:
        self.assignment = self
        self.streams = self
        self.rank, self._lines = rank, lines

    def tails(self) -> tuple[list[str], list[str]]:
        return self._lines, ["to stderr"]


class FakeAgent:
    held = (Held(0, ["one", "two", "three"]), Held(1, ["uno"]))


class FakePump:
    def __init__(self) -> None:
        self.followers: list[Callable[[bytes], None]] = []
        self.followed = threading.Event()

    def prefix(self, held: Held) -> bytes:
        return b"[%d] " % held.rank

    def follow(self, follower: Callable[[bytes], None]) -> Callable[[], None]:
        self.followers.append(follower)
        self.followed.set()
        return partial(self.followers.remove, follower)


class Host:
    """A server on a progress thread, and a conversation with it."""

    def __init__(self, loop: ProgressThread, session: Session, run_id: str) -> None:
        self.loop, self.chief, self.pump = loop, Chief(), FakePump()
        self.server = ControlServer(
            loop,
            run_id=run_id,
            agent_id="me",
            token=b"secret",
            chief=self.chief,
            agent=cast(Agent, FakeAgent()),
            pump=cast(LogPump, self.pump),
            page=lambda: None,
        )
        self.talk: Conversation = session.connect_here(run_id)

    def on_loop(self, call: Callable[[], None]) -> None:
        done = threading.Event()
        self.loop.call_soon(call)
        self.loop.call_soon(done.set)
        assert done.wait(5)

    def coordinate(self) -> Coordinator:
        """Become the coordinator of a job of two agents, ``me`` and ``other``."""
        self.chief.coordinator = coordinator = self.coordinate_later()
        return coordinator

    def coordinate_later(self) -> Coordinator:
        """As ``coordinate``, but for saying so."""
        sent: list[tuple[str, AgentMessage]] = []

        def send(name: str, message: AgentMessage) -> None:
            sent.append((name, message))

        job = Job(JobPlan(min_nodes=1, max_nodes=2), now=0.0)
        coordinator = Coordinator(
            self.loop,
            job,
            term=1,
            agent_id="me",
            store="",
            events=EventLog(History(), term=1, agent_id="me", send=send),
            send=send,
            on_over=lambda outcome: None,
        )
        coordinator.sent = sent  # type: ignore[attr-defined]

        def attach() -> None:
            for name in ("me", "other"):
                coordinator.attach(Attach(agent=agent_info(name)))

        self.on_loop(attach)
        return coordinator

    def answer(self, link: Link, **payload: Any) -> None:
        """Let the coordinator that was asked last over ``link`` answer."""
        number = self.chief.told[-1][1].number
        self.on_loop(lambda: self.server.heard(link, Answered(number=number, **payload)))


@pytest.fixture
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    loop = ProgressThread("test-agent")
    with Session() as session:
        host = Host(loop, session, request.node.name)
        try:
            yield host
        finally:
            if host.chief.coordinator is not None:
                host.on_loop(host.chief.coordinator.close)
            host.on_loop(host.server.close)
            loop.stop()


def test_a_process_of_this_user_needs_no_token_and_is_told_it(host: Host) -> None:
    answer = host.talk.ask(WhoIsHere(), Here)
    assert (answer.agent, answer.token) == ("me", "secret")


def test_the_coordinators_own_desk_answers(host: Host) -> None:
    host.coordinate()
    status = host.talk.ask(StatusOf(), JobStatus)
    assert [each.id for each in status.agents] == ["me", "other"]
    assert status.coordinator == "me"


def test_what_is_refused_is_said_in_one_line(host: Host) -> None:
    host.coordinate()
    with pytest.raises(ControlError, match=r"7 hosts are not possible: the job was started with --nnodes 1:2"):
        host.talk.ask(Scale(nodes=7), Done)
    with pytest.raises(ControlError, match="no agent on 'nowhere'"):
        host.talk.ask(Drain(agent="nowhere"), Done)
    for number, question in ((3, {"ask": "riddle"}), (4, {"ask": "scale"})):
        answer = host.talk.link.ask(LogsOf(last=0, follow=True), Lines)
        host.talk.link.send(pack_asked(number, question))
        with pytest.raises(CallRefusedError, match="'riddle'" if question["ask"] == "riddle" else "nodes"):
            wait_for(answer, 5.0)


def test_a_drain_is_decided_and_carried_out(host: Host) -> None:
    coordinator = host.coordinate()
    answer = host.talk.ask(Drain(agent="other"), Done)
    assert answer.agent == "other"
    assert "draining" in [event.kind for event in coordinator.events.history.since(0)]


def test_an_agent_is_killed_only_after_the_answer(host: Host) -> None:
    coordinator = host.coordinate()
    assert host.talk.ask(Kill(agent="1"), Done).agent == "other"
    host.on_loop(lambda: None)
    assert ("other", Die()) in coordinator.sent  # type: ignore[attr-defined]


def test_events_are_told_as_they_happen_until_nobody_listens(host: Host) -> None:
    coordinator = host.coordinate()
    parts = host.talk.parts(EventsOf(last=1, follow=True), Events)
    assert list(next(parts).events) == coordinator.events.history.latest(1)
    host.on_loop(lambda: coordinator.decide(lambda job, now: job.scale(2, now)))
    assert next(parts).events[0].kind == "scaled"
    assert coordinator.events.watchers
    host.on_loop(host.server.close)
    assert list(parts) == [], "it ends well with the job"
    assert not coordinator.events.watchers


def test_events_are_followed_on_at_the_next_coordinator_from_where_the_last_one_stopped(host: Host) -> None:
    link = cast(Link, FakeLink())
    host.chief.superior = link
    told_parts: queue.SimpleQueue[Events] = queue.SimpleQueue()
    host.talk.link.ask(EventsOf(last=0, follow=True), Events, told_parts.put)
    assert host.chief.heard.wait(5)
    told = host.coordinate_later()
    before = told.events.num_recorded
    host.answer(link, part={"events": [], "last": before - 1})
    assert told_parts.get(timeout=5).events == ()
    host.chief.superior, host.chief.coordinator = None, told
    assert [event.number for event in told_parts.get(timeout=5).events] == [before]


def test_a_question_is_passed_on_to_the_coordinator_and_its_answer_back(host: Host) -> None:
    link = cast(Link, FakeLink())
    host.chief.superior = link
    answer = host.talk.link.ask(Drain(agent="other"), Done)
    assert host.chief.heard.wait(5)
    assert host.chief.told[0][1] == Asked(number=1, question={"ask": "drain", "agent": "other"})
    host.answer(link, answer={"text": "it drains"})
    assert wait_for(answer, 5.0) == Done(text="it drains")


def test_a_question_of_another_agent_is_answered_over_its_link(host: Host) -> None:
    host.coordinate()
    link = cast(Link, FakeLink())
    host.on_loop(lambda: host.server.heard(link, Asked(number=9, question={"ask": "status"})))
    ((over, answered),) = host.chief.told
    assert over is link
    assert isinstance(answered, Answered)
    assert answered.answer is not None
    assert (answered.number, answered.answer["coordinator"]) == (9, "me")


def test_an_agent_that_does_not_coordinate_says_so_to_another(host: Host) -> None:
    link = cast(Link, FakeLink())
    host.on_loop(lambda: host.server.heard(link, Asked(number=9, question={"ask": "status"})))
    answered = host.chief.told[0][1]
    assert isinstance(answered, Answered)
    assert "does not coordinate the job any more" in (answered.error or "")


def test_a_question_waits_for_the_next_coordinator(host: Host) -> None:
    host.chief.superior = cast(Link, FakeLink())
    answer = host.talk.link.ask(StatusOf(), JobStatus)
    assert host.chief.heard.wait(5)
    host.chief.superior = None
    host.coordinate()
    assert wait_for(answer, 5.0).coordinator == "me"


def test_what_changes_something_is_not_asked_twice(host: Host) -> None:
    host.chief.superior = cast(Link, FakeLink())
    answer = host.talk.link.ask(Drain(agent="other"), Done)
    assert host.chief.heard.wait(5)
    host.chief.superior = None
    coordinator = host.coordinate()
    with pytest.raises(CallRefusedError, match="was lost before it answered"):
        wait_for(answer, 5.0)
    assert not coordinator.job.nodes.draining


def test_that_there_is_no_coordinator_is_said_after_a_while(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "WAIT_S", 0.0)
    with pytest.raises(ControlError, match="no coordinator at the moment"):
        host.talk.ask(StatusOf(), JobStatus)


def test_an_agent_that_ends_says_so_and_ends_what_is_followed(host: Host) -> None:
    host.chief.superior = cast(Link, FakeLink())
    asked = host.talk.link.ask(StatusOf(), JobStatus)
    assert host.chief.heard.wait(5)
    followed = host.talk.link.ask(LogsOf(last=0, follow=True), Lines)
    assert host.pump.followed.wait(5)
    host.on_loop(host.server.close)
    with pytest.raises(CallRefusedError, match=ENDING):
        wait_for(asked, 5.0)
    assert wait_for(followed, 5.0) == Lines()


def test_the_last_lines_of_all_workers_or_of_one(host: Host) -> None:
    assert host.talk.ask(LogsOf(last=2), Lines).lines == (
        "[0] two",
        "[0] three",
        "[0] to stderr",
        "[1] uno",
        "[1] to stderr",
    )
    assert host.talk.ask(LogsOf(rank=1, last=0), Lines).lines == ()


def test_the_lines_of_one_rank_are_followed(host: Host) -> None:
    parts = host.talk.parts(LogsOf(rank=1, last=0, follow=True), Lines)
    assert next(parts) == Lines()
    assert host.pump.followed.wait(5)
    (follower,) = host.pump.followers
    follower(b"[0] not this\n[1] this\n")
    follower(b"[0] nor this\n")
    follower(b"[1] and \xff\n")
    assert next(parts) == Lines(lines=("[1] this",))
    assert next(parts) == Lines(lines=("[1] and \ufffd",))
    host.on_loop(host.server.close)
    assert list(parts) == []
    assert not host.pump.followers


def test_whoever_is_gone_is_followed_no_longer(host: Host) -> None:
    coordinator = host.coordinate()
    parts = host.talk.parts(EventsOf(last=0, follow=True), Events)
    assert next(parts).events == ()
    host.talk.close()
    gone = threading.Event()

    def look() -> None:
        if coordinator.events.watchers:
            host.loop.call_later(0.01, look)
        else:
            gone.set()

    host.loop.call_soon(look)
    assert gone.wait(5)
    with pytest.raises(ControlError, match="is gone"):
        next(parts)


def test_of_several_jobs_one_has_to_be_chosen(host: Host) -> None:
    loop = ProgressThread("test-other-agent")
    with Session() as session:
        other = Host(loop, session, "another job")
        with pytest.raises(ControlError, match=r"several jobs run here: choose one with --job: .*another job"):
            session.connect_here(None)
        other.on_loop(other.server.close)
        loop.stop()


def test_nobody_is_found_for_a_job_that_does_not_run_here() -> None:
    with Session() as session, pytest.raises(ControlError, match="no agent of the job 'no such job'"):
        session.connect_here("no such job")
