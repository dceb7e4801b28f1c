"""One agent's end of control links: it answers questions about the job, itself or by asking the coordinator."""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from ...errors import MessageError
from ...process.link import Call, ControlLink, as_json
from ...wire.endpoints.listener import Listener, Pending
from ...wire.progress.thread import ProgressThread
from ...world.links.link import Link
from ..agent.agent import Agent
from ..job.history import Event
from ..job.status import JobStatus
from ..leadership.coordinator import Coordinator
from ..leadership.messages import Answered, Asked
from ..logs.pump import LogPump
from . import messages, questions
from .log_feed import follow_lines, last_lines
from .names import control_name

logger = logging.getLogger(__name__)

MAX_CLIENTS = 64
MAX_QUESTION_BYTES = 16 * 1024
WAIT_S = 5.0  # for a coordinator: the next one may just be taking over
LOOK_S = 0.1
NONCE_BYTES = 6

AskerLink = ControlLink[None, messages.Question]


class Chief(Protocol):
    """Who knows where the coordinator is."""

    @property
    def coordinator(self) -> Coordinator | None:
        """The coordinator, if this agent is it."""

    @property
    def superior(self) -> Link | None:
        """The link to it, if another agent is."""

    def tell(self, link: Link, message: Asked | Answered) -> None: ...


class Asker(Protocol):
    """Who waits for an answer: over a link of its own (``Call``), or by way of another agent."""

    @property
    def is_open(self) -> bool: ...

    def part(self, content: object) -> bool: ...

    def answer(self, content: object) -> bool: ...

    def refuse(self, reason: str) -> bool: ...


class _OtherAgent:
    """An agent that passes on a question under a number of its own."""

    def __init__(self, chief: Chief, link: Link, number: int) -> None:
        self._chief, self._link, self._number = chief, link, number

    @property
    def is_open(self) -> bool:
        return self._link.open

    def part(self, content: object) -> bool:
        return self._tell(part=as_json(content))

    def answer(self, content: object) -> bool:
        return self._tell(answer=as_json(content))

    def refuse(self, reason: str) -> bool:
        return self._tell(error=reason)

    def _tell(self, **said: Any) -> bool:
        self._chief.tell(self._link, Answered(number=self._number, **said))
        return True


class _Open:
    """A question that is not answered to the end."""

    def __init__(self, question: messages.Question, asker: Asker) -> None:
        self.question, self.asker = question, asker
        self.give_up_at = time.monotonic() + WAIT_S
        self.asked: Coordinator | Link | None = None
        self.last_event: int | None = None
        """The number of the last one that was told."""
        self.stop: Callable[[], None] = lambda: None

    @property
    def is_followed(self) -> bool:
        return isinstance(self.question, messages.EventsOf | messages.LogsOf) and self.question.follow


class ControlServer:
    """Progress thread only. ``page`` returns where the coordinator's page is, if this agent serves it.

    On this host it listens at a name that tells user and job, without a token: only processes of this user get
    through (see ``wire.endpoints.addresses``), and those can read the token in the environment of the job's processes
    anyway. So commands work here also for a job that drew its token by itself.
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
        self._clients: set[AskerLink] = set()
        self._open: dict[int, _Open] = {}
        self._numbers = itertools.count(1)
        self._looking = False
        self._closed = False
        self._epoch_s = time.time() - time.monotonic()  # taken once, so that a time that is told stays the same
        name = control_name(run_id, os.geteuid(), os.urandom(NONCE_BYTES).hex())
        self._listener = Listener(loop, name, 0, b"", {messages.PURPOSE: partial(self._admit, is_local=True)})

    def admit(self, pending: Pending) -> None:
        """Somebody came to the agent's listener, and has proved the token."""
        self._admit(pending, is_local=False)

    def heard(self, link: Link, message: Asked | Answered) -> None:
        """Another agent passes on a question, or an answer."""
        number = message.number
        if isinstance(message, Asked):
            asker = _OtherAgent(self._chief, link, number)
            try:
                self._take(_Open(messages.QUESTIONS.from_json(message.question), asker), passed_on=True)
            except MessageError as error:
                asker.refuse(str(error))
        elif number in self._open and self._open[number].asked is link:
            opened = self._open[number]
            if message.part is not None:
                if type(last := message.part.get("last")) is int:
                    opened.last_event = last
                opened.asker.part(message.part)
            elif message.error is not None:
                self._refuse(number, message.error)
            else:
                self._answer(number, message.answer)

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
            trainings=coordinator.trainings.status(),
            remote=coordinator.remote,
        )

    def close(self) -> None:
        """End all answers. Idempotent."""
        self._closed = True
        self._listener.close()
        for number, opened in list(self._open.items()):
            if opened.is_followed:  # such an answer ends with the agent
                self._answer(
                    number, messages.Lines() if isinstance(opened.question, messages.LogsOf) else messages.Events()
                )
            else:
                self._refuse(number, questions.ENDING)
        for client in list(self._clients):
            client.finish()

    # ---- who asks

    def _admit(self, pending: Pending, *, is_local: bool) -> None:
        if len(self._clients) >= MAX_CLIENTS or self._closed:
            pending.refuse(f"this agent answers {MAX_CLIENTS} others already: try again later, or ask another agent")
            return
        client: AskerLink = ControlLink(
            None,
            messages.QUESTIONS,
            on_message=partial(self._asked, is_local),
            on_lost=lambda reason: self._clients.discard(client),
            max_heard_bytes=MAX_QUESTION_BYTES,
        )
        self._clients.add(client)
        pending.accept(client)

    def _asked(self, is_local: bool, question: messages.Question, call: Call) -> None:
        if isinstance(question, messages.WhoIsHere):
            call.answer(
                messages.Here(job=self._run_id, agent=self._agent_id, token=self._token.decode() if is_local else None)
            )
        else:
            self._take(_Open(question, call))

    # ---- open questions

    def _take(self, opened: _Open, *, passed_on: bool = False) -> None:
        number = next(self._numbers)
        self._open[number] = opened
        if isinstance(opened.question, messages.LogsOf):
            self._attempt(number, partial(self._tell_lines, opened, opened.question))
        elif passed_on and self._chief.coordinator is None:
            self._refuse(number, "the agent that was asked does not coordinate the job any more")
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
            self._attempt(number, partial(self._ask_coordinator, chief.coordinator, opened))
        elif chief.superior is not None:
            chief.tell(chief.superior, Asked(number=number, question=messages.QUESTIONS.to_json(opened.question)))

    def _look(self) -> None:
        """Look after questions that wait, whose coordinator is another one now, or for which nobody waits."""
        now = time.monotonic()
        for number, opened in list(self._open.items()):
            if not opened.asker.is_open:
                self._forget(number)
            elif isinstance(opened.question, messages.LogsOf):
                continue
            elif opened.asked is None and now >= opened.give_up_at:
                self._refuse(number, "the job has no coordinator at the moment: try again in a few seconds")
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
            repeated = questions.again(opened.question, opened.last_event)
            if repeated is None:
                text = "the coordinator was lost before it answered: see 'multiworld status' for what was done"
                self._refuse(number, text)
                return
            opened.stop()
            opened.question, opened.give_up_at = repeated, now + WAIT_S
        self._place(number)

    def _attempt(self, number: int, work: Callable[[int], None]) -> None:
        try:
            work(number)
        except ValueError as error:
            self._refuse(number, str(error))
        except Exception as error:  # who asks is told; the agent has more important things to do
            logger.exception("a question could not be answered: %s", self._open[number].question)
            self._refuse(number, f"the agent could not answer: {error}")

    def _answer(self, number: int, content: object) -> None:
        self._open[number].asker.answer(content)
        self._forget(number)

    def _refuse(self, number: int, reason: str) -> None:
        self._open[number].asker.refuse(reason)
        self._forget(number)

    def _forget(self, number: int) -> None:
        self._open.pop(number).stop()

    # ---- answers

    def _ask_coordinator(self, coordinator: Coordinator, opened: _Open, number: int) -> None:
        question = opened.question
        if isinstance(question, messages.StatusOf):
            self._answer(number, self.status())
        elif isinstance(question, messages.EventsOf):
            self._tell_events(coordinator, opened, question, number)
        elif isinstance(question, messages.Scale):
            num_nodes = question.nodes
            coordinator.decide(lambda job, now: job.scale(num_nodes, now))
            there = len(coordinator.job.nodes.agents)
            self._answer(number, messages.Done(text=f"{num_nodes} hosts are to have ranks, of {there} that are there"))
        elif isinstance(question, messages.Drain):
            self._drain(coordinator, number, question)
        elif isinstance(question, messages.Kill):
            self._kill(coordinator, number, question)
        else:
            raise ValueError(f"the coordinator is not asked {type(question).__name__}")

    def _drain(self, coordinator: Coordinator, number: int, question: messages.Drain) -> None:
        agent = questions.choose_agent(questions.list_agents(coordinator.job), question.agent)
        coordinator.decide(lambda job, now: job.drain(agent.id, now))
        text = f"{agent.hostname} ({agent.host}:{agent.port}) is being drained: its workers are asked to end"
        self._answer(number, messages.Done(text=text, agent=agent.id))

    def _kill(self, coordinator: Coordinator, number: int, question: messages.Kill) -> None:
        if question.agent is None:
            rank = question.rank
            assert rank is not None
            coordinator.decide(lambda job, _: job.kill(rank))
            self._answer(number, messages.Done(text=f"rank {rank} is killed"))
            return
        agent = questions.choose_agent(questions.list_agents(coordinator.job), question.agent)
        text = f"the agent on {agent.hostname} ({agent.host}:{agent.port}, pid {agent.pid}) is killed"
        self._answer(number, messages.Done(text=text, agent=agent.id))  # first: it may be the way back
        coordinator.kill_agent(agent.id)

    def _tell_events(self, coordinator: Coordinator, opened: _Open, question: messages.EventsOf, number: int) -> None:
        log = coordinator.events
        events = questions.choose_events(log.history, question)
        if not question.follow:
            self._answer(number, messages.Events(events=tuple(events)))
            return

        def tell(events: list[Event]) -> None:
            opened.last_event = log.num_recorded
            opened.asker.part(messages.Events(events=tuple(events), last=log.num_recorded))

        tell(events)

        def watch(event: Event) -> None:
            tell([event])

        log.watchers.append(watch)
        opened.stop = partial(log.watchers.remove, watch)

    def _tell_lines(self, opened: _Open, question: messages.LogsOf, number: int) -> None:
        lines = messages.Lines(lines=tuple(last_lines(self._agent, self._pump, question.rank, question.last)))
        if not question.follow:
            self._answer(number, lines)
            return
        opened.asker.part(lines)
        opened.stop = follow_lines(self._agent, self._pump, question.rank, opened.asker.part)
