"""``multiworld logs``: the output of a running job's workers, from all hosts."""

from __future__ import annotations

import json
import queue
import sys
from collections.abc import Sequence

from ..command_parser import CommandParser
from ..elastic.control.client import ControlError, Conversation, Session
from ..elastic.control.messages import Here, Lines, LogsOf, StatusOf, WhoIsHere
from ..elastic.job.status import AgentStatus, JobStatus
from ..process.link import LinkLostError
from ..wire.progress.operation import Operation
from ..world.launcher.launched import token_of_environment
from .cluster import cluster_parser, name_job, ranges, session, told

LAST_LINES = 10
LOOK_S = 1.0  # for hosts that have come since


def main(arguments: Sequence[str] | None = None) -> int:
    """Print lines: 0, or 1 if the job cannot be asked."""
    parser = command_parser()
    options = parser.parse_args(arguments)
    if options.last < 0:
        parser.error(f"--last {options.last}: expected a number of lines")

    def work() -> None:
        with session(options) as (opened, talk):
            name_job(options, talk)
            question = LogsOf(rank=options.rank, last=options.last, follow=options.follow)
            _Logs(opened, talk, question, as_json=options.json).show()

    return told("logs", work)


def command_parser() -> CommandParser:
    parser = cluster_parser("logs", "Show the last lines that workers wrote, on whichever host, and follow them.")
    parser.add_argument("rank", nargs="?", type=int, metavar="RANK", help="of this worker only")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what they write from now on")
    parser.add_argument(
        "-n", "--last", type=int, default=LAST_LINES, metavar="N", help=f"lines of each stream (default: {LAST_LINES})"
    )
    return parser


class _Logs:
    """Each agent is asked for the lines of its host, so that they do not all come by way of the coordinator."""

    def __init__(self, opened: Session, talk: Conversation, question: LogsOf, *, as_json: bool) -> None:
        self._session, self._talk, self._question, self._as_json = opened, talk, question, as_json
        self._here = talk.ask(WhoIsHere(), Here)
        self._told: queue.SimpleQueue[tuple[str, Lines | Operation[Lines]]] = queue.SimpleQueue()
        self._asked: set[str] = set()  # agents
        self._answering: set[str] = set()
        self._ranks: set[int] = set()
        self._has_shown = False

    def show(self) -> None:
        """Print what they say until all have ended."""
        self._ask_all()
        while self._answering:
            try:
                agent, told = self._told.get(timeout=LOOK_S)
            except queue.Empty:
                self._ask_all()
                continue
            if isinstance(told, Lines):
                self._show(agent, told)
            else:
                self._answering.discard(agent)
                if told.error is None:
                    self._show(agent, told.result())
                elif not isinstance(told.error, LinkLostError):  # else that host has ended
                    raise ControlError(str(told.error))
        rank = self._question.rank
        if rank is not None and rank not in self._ranks and not self._has_shown:
            raise ControlError(f"no worker has the rank {rank}; the job has {ranges(sorted(self._ranks))}")

    def _ask_all(self) -> None:
        """Ask those that were not asked yet."""
        try:
            status = self._talk.ask(StatusOf(), JobStatus)
        except ControlError:
            if not self._asked:
                raise
            return  # the job may be ending, or have no coordinator now: its agents go on telling
        self._ranks.update(worker.rank for worker in status.workers if worker.rank is not None)
        for agent in status.agents:
            if agent.id not in self._asked:
                self._asked.add(agent.id)
                self._ask(agent)

    def _ask(self, agent: AgentStatus) -> None:
        token = token_of_environment() if self._here.token is None else self._here.token
        try:
            is_known = agent.id == self._here.agent
            talk = self._talk if is_known else self._session.connect(agent.host, agent.port, token)
        except ControlError as error:
            print(f"multiworld logs: agent {agent.index} is left out: {error}", file=sys.stderr)
            return
        self._answering.add(agent.id)
        asked = talk.link.ask(self._question, Lines, lambda lines: self._told.put((agent.id, lines)))
        asked.add_callback(lambda ended: self._told.put((agent.id, ended)))

    def _show(self, agent: str, lines: Lines) -> None:
        if lines.left_out:
            print(f"multiworld logs: {lines.left_out} lines are left out: too many to follow", file=sys.stderr)
        self._has_shown = self._has_shown or bool(lines.lines)
        for line in lines.lines:
            print(json.dumps({"agent": agent, "line": line}) if self._as_json else line, flush=True)
