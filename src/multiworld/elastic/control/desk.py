"""The desk of one agent: it answers questions about the job, itself or by asking the coordinator."""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol

from ...wire.listener import Listener, Pending
from ...wire.progress import ProgressThread
from ...world.link import Link
from ..agent.agent import Agent
from ..job.status import JobStatus
from ..leadership.coordinator import Coordinator
from ..logs.pump import LogPump
from . import questions
from .log_feed import follow_lines, last_lines
from .names import control_name
from .visitor import Visitor

__all__ = ["PURPOSE", "Chief", "Desk"]

logger = logging.getLogger(__name__)

PURPOSE = "control"
MAX_VISITORS = 64
WAIT_S = 5.0  # for a coordinator: the next one may just be taking over
LOOK_S = 0.1
NONCE_BYTES = 6

Reply = Callable[[dict[str, Any]], bool]


class Chief(Protocol):
    """Who knows where the coordinator is."""

    @property
    def coordinator(self) -> Coordinator | None:
        """The coordinator, if this agent is it."""

    @property
    def superior(self) -> Link | None:
        """The link to it, if another agent is."""

    def tell(self, link: Link, note: dict[str, Any]) -> None: ...


class _Open:
    """A question that is not answered to the end."""

    def __init__(self, question: dict[str, Any], reply: Reply, is_gone: Callable[[], bool]) -> None:
        self.question, self.reply, self.is_gone = question, reply, is_gone
        self.give_up_at = time.monotonic() + WAIT_S
        self.asked: Coordinator | Link | None = None
        self.stop: Callable[[], None] = lambda: None
        self._last_event: int | None = None

    def saw(self, part: dict[str, Any] | None) -> None:
        """A part of the answer was passed on."""
        if part is not None and "last" in part:
            self._last_event = int(part["last"])

    def again(self) -> dict[str, Any] | None:
        """Return the question for the next coordinator; None if it may not be repeated."""
        return questions.again(self.question, self._last_event)


class Desk:
    """Progress thread only. ``page`` returns where the coordinator's page is, if this agent serves it.

    On this host it listens at a name that tells user and job, without a token: only processes of this user get
    through (see ``wire.addresses``), and those can read the token in the environment of the job's processes anyway. So
    commands work here also for a job that drew its token by itself.
    """

    def __init__(
        self,
        loop: ProgressThread,
        *,
        run_id: str,
        agent_id: str,
        token: bytes,
        chief: Chief,
        agent: Agent,
        pump: LogPump,
        page: Callable[[], str | None],
    ) -> None:
        """Bind and listen; raises OSError."""
        self._loop, self._run_id, self._agent_id, self._token = loop, run_id, agent_id, token
        self._chief, self._agent, self._pump, self._page = chief, agent, pump, page
        self._visitors: set[Visitor] = set()
        self._open: dict[int, _Open] = {}
        self._numbers = itertools.count(1)
        self._looking = False
        self._closed = False
        self._epoch_s = time.time() - time.monotonic()  # taken once, so that a time that is told stays the same
        name = control_name(run_id, os.geteuid(), os.urandom(NONCE_BYTES).hex())
        self._listener = Listener(loop, name, 0, b"", {PURPOSE: partial(self._admit, is_local=True)})

    def admit(self, pending: Pending) -> None:
        """Somebody came to the agent's listener, and has proved the token."""
        self._admit(pending, is_local=False)

    def heard(self, link: Link, note: dict[str, Any]) -> None:
        """Another agent passes on a question, or an answer."""
        number = int(note["number"])
        if note["say"] == "asked":
            reply = partial(self._reply_over, link, number)
            self._take(_Open(dict(note["question"]), reply, lambda: not link.open), passed_on=True)
        elif number in self._open and self._open[number].asked is link:
            self._open[number].saw(note.get("part"))
            payload = {name: value for name, value in note.items() if name not in ("say", "number")}
            self._reply(number, payload)

    def status(self) -> JobStatus | None:
        """Return what is known of the job, if this agent coordinates it."""
        coordinator = self._chief.coordinator
        if coordinator is None:
            return None
        return questions.status_of(
            coordinator.job,
            run_id=self._run_id,
            term=coordinator.term,
            coordinator=self._agent_id,
            page=self._page(),
            now=time.monotonic(),
            epoch_s=self._epoch_s,
            pids=coordinator.pids,
        )

    def close(self) -> None:
        """End all answers. Idempotent."""
        self._closed = True
        self._listener.close()
        for number in list(self._open):
            follows = self._open[number].question.get("follow")  # whose answer ends with the agent
            self._reply(number, {"answer": {}} if follows else {"error": questions.ENDING})
        for visitor in list(self._visitors):
            visitor.finish()

    # ---- who asks

    def _admit(self, pending: Pending, *, is_local: bool) -> None:
        if len(self._visitors) >= MAX_VISITORS or self._closed:
            pending.refuse(f"this agent answers {MAX_VISITORS} others already: try again later, or ask another agent")
            return
        visitor = Visitor(pending.connection, is_local=is_local, on_ask=self._asked, on_lost=self._visitors.discard)
        self._visitors.add(visitor)
        pending.accept(visitor)

    def _asked(self, visitor: Visitor, number: int, question: dict[str, Any]) -> None:
        opened = _Open(question, partial(visitor.tell, number), lambda: visitor.closed)
        if question.get("ask") == "here":
            token = self._token.decode() if visitor.is_local else None
            opened.reply({"answer": {"job": self._run_id, "agent": self._agent_id, "token": token}})
        else:
            self._take(opened)

    def _reply_over(self, link: Link, number: int, payload: dict[str, Any]) -> bool:
        self._chief.tell(link, {"say": "answered", "number": number, **payload})
        return True

    # ---- open questions

    def _take(self, opened: _Open, *, passed_on: bool = False) -> None:
        number = next(self._numbers)
        self._open[number] = opened
        if opened.question.get("ask") == "logs":
            self._attempt(number, self._tell_lines)
        elif passed_on and self._chief.coordinator is None:
            self._reply(number, {"error": "the agent that was asked does not coordinate the job any more"})
        else:
            self._place(number)
        if not self._looking:
            self._looking = True
            self._loop.call_later(LOOK_S, self._look)

    def _place(self, number: int) -> None:
        """Have it answered by the coordinator, here or elsewhere, if there is one now."""
        opened, chief = self._open[number], self._chief
        opened.asked = chief.coordinator or chief.superior
        if chief.coordinator is not None:
            self._attempt(number, partial(self._answer, chief.coordinator))
        elif chief.superior is not None:
            chief.tell(chief.superior, {"say": "asked", "number": number, "question": opened.question})

    def _look(self) -> None:
        """Look after questions that wait, whose coordinator is another one now, or for which nobody waits."""
        now = time.monotonic()
        for number, opened in list(self._open.items()):
            if opened.is_gone():
                self._forget(number)
            elif opened.question.get("ask") == "logs":
                continue
            elif opened.asked is None and now >= opened.give_up_at:
                self._reply(number, {"error": "the job has no coordinator at the moment: try again in a few seconds"})
            elif opened.asked is not (self._chief.coordinator or self._chief.superior):
                self._ask_again(number, now)
            elif opened.asked is None:
                self._place(number)
        self._looking = bool(self._open)
        if self._looking and not self._closed:
            self._loop.call_later(LOOK_S, self._look)

    def _ask_again(self, number: int, now: float) -> None:
        opened = self._open[number]
        if opened.asked is not None:
            repeated = opened.again()
            if repeated is None:
                text = "the coordinator was lost before it answered: see 'multiworld status' for what was done"
                self._reply(number, {"error": text})
                return
            opened.stop()
            opened.question, opened.give_up_at = repeated, now + WAIT_S
        self._place(number)

    def _attempt(self, number: int, answer: Callable[[int, _Open], None]) -> None:
        try:
            answer(number, self._open[number])
        except ValueError as error:
            self._reply(number, {"error": str(error)})
        except Exception as error:  # who asks is told; the agent has more important things to do
            logger.exception("a question could not be answered: %s", self._open[number].question)
            self._reply(number, {"error": f"the agent could not answer: {error}"})

    def _reply(self, number: int, payload: dict[str, Any]) -> None:
        self._open[number].reply(payload)
        if "part" not in payload:
            self._forget(number)

    def _forget(self, number: int) -> None:
        self._open.pop(number).stop()

    # ---- answers

    def _answer(self, coordinator: Coordinator, number: int, opened: _Open) -> None:
        question = opened.question
        ask = question.get("ask")
        if ask == "status":
            status = self.status()
            assert status is not None
            self._reply(number, {"answer": asdict(status)})
        elif ask == "events":
            self._tell_events(coordinator, number, opened)
        elif ask == "scale":
            num_nodes = questions.number_of(question, "nodes")
            coordinator.decide(lambda job, now: job.scale(num_nodes, now))
            there = len(coordinator.job.agents)
            self._reply(number, {"answer": {"text": f"{num_nodes} hosts are to have ranks, of {there} that are there"}})
        elif ask == "drain":
            self._drain(coordinator, number, question)
        elif ask == "kill":
            self._kill(coordinator, number, question)
        else:
            raise ValueError(f"this agent knows no question {ask!r}")

    def _drain(self, coordinator: Coordinator, number: int, question: dict[str, Any]) -> None:
        agent = questions.choose_agent(questions.list_agents(coordinator.job), questions.text_of(question, "agent"))
        coordinator.decide(lambda job, now: job.drain(agent.id, now))
        text = f"{agent.hostname} ({agent.host}:{agent.port}) is being drained: its workers are asked to end"
        self._reply(number, {"answer": {"text": text, "agent": agent.id}})

    def _kill(self, coordinator: Coordinator, number: int, question: dict[str, Any]) -> None:
        if "rank" in question:
            rank = questions.number_of(question, "rank")
            coordinator.decide(lambda job, _: job.kill(rank))
            self._reply(number, {"answer": {"text": f"rank {rank} is killed"}})
            return
        agent = questions.choose_agent(questions.list_agents(coordinator.job), questions.text_of(question, "agent"))
        text = f"the agent on {agent.hostname} ({agent.host}:{agent.port}, pid {agent.pid}) is killed"
        self._reply(number, {"answer": {"text": text, "agent": agent.id}})  # first: it may be the way back
        coordinator.kill_agent(agent.id)

    def _tell_events(self, coordinator: Coordinator, number: int, opened: _Open) -> None:
        log, question = coordinator.events, opened.question
        events = questions.choose_events(log.history, last=question.get("last"), since=question.get("since"))
        if not question.get("follow"):
            self._reply(number, {"answer": {"events": events}})
            return

        def tell(events: list[dict[str, Any]]) -> None:
            part = {"events": events, "last": log.num_recorded}
            opened.saw(part)
            opened.reply({"part": part})

        tell(events)

        def watch(event: dict[str, Any]) -> None:
            tell([event])

        log.watchers.append(watch)
        opened.stop = partial(log.watchers.remove, watch)

    def _tell_lines(self, number: int, opened: _Open) -> None:
        rank = None if opened.question.get("rank") is None else questions.number_of(opened.question, "rank")
        lines = last_lines(self._agent, self._pump, rank, questions.number_of(opened.question, "last"))
        if not opened.question.get("follow"):
            self._reply(number, {"answer": {"lines": lines}})
            return
        self._reply(number, {"part": {"lines": lines}})
        opened.stop = follow_lines(self._agent, self._pump, rank, lambda part: opened.reply({"part": part}))
