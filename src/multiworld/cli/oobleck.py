"""``multiworld oobleck``, also called ``oobleck``: the commands for a cluster that Oobleck's users know."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..command_parser import CommandParser
from ..elastic.control.client import ControlError, Conversation, Session
from ..elastic.control.messages import Done, Drain, StatusOf
from ..elastic.job.status import AgentStatus, JobStatus
from ..wire.endpoints.addresses import can_listen_at
from ..wire.endpoints.bracketed import bracketed
from ..wire.endpoints.token import weakness_of
from ..world.launcher.launched import token_of_environment
from .cluster import resolve, told
from .drain import wait_until_gone

OOBLECK = "multiworld oobleck"
EPILOG = """\
examples:
  oobleck --ip node1 --port 41739 get_agent_list
  oobleck --ip node1 --port 41739 kill_agent --agent_index 2

Any agent answers: the coordinator prints its address when the job starts, and 'multiworld agents' lists all.
MULTIWORLD_TOKEN must be the job's; it is not needed by the same user on the host of that agent. kill_agent asks the
workers of that agent to end, as 'multiworld drain' does, and returns when the agent has left; the job goes on.

Exit status: 0, 1 if the job cannot be asked or refuses, 2 for a command that makes no sense."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the two commands; see the epilogue for what is returned."""
    parser = command_parser()
    options = parser.parse_args(arguments)
    is_kill = options.command == "kill_agent"
    if is_kill != (options.agent_index is not None):
        parser.error("kill_agent needs --agent_index" if is_kill else "--agent_index is for kill_agent")

    def work() -> None:
        with _conversation(options.ip, options.port) as talk:
            if is_kill:
                _kill(talk, options.agent_index)
            else:
                print(agent_list(talk.ask(StatusOf(), JobStatus).agents))

    return told("oobleck", work)


def agent_list(agents: Sequence[AgentStatus]) -> str:
    """Return the list as Oobleck prints it."""
    return "\n".join(["=== Agents ===", *map(_line, agents)])


def _line(agent: AgentStatus) -> str:
    status = "up" if agent.state == "active" else agent.state
    where = f"{bracketed(agent.hostname)}:{agent.port}"
    return f"[{agent.index}] IP: {where} Status: {status} (device indices: {','.join(agent.device_indices)})"


def _kill(talk: Conversation, index: int) -> None:
    agents = talk.ask(StatusOf(), JobStatus).agents
    if not 0 <= index < len(agents):
        raise ControlError(f"there is no agent {index}: they are numbered from 0 to {len(agents) - 1}")
    answer = talk.ask(Drain(agent=agents[index].id), Done)  # by its id: numbers move up when an agent leaves
    print(answer.text, flush=True)
    wait_until_gone(talk, answer.agent)


@contextmanager
def _conversation(ip: str, port: int) -> Iterator[Conversation]:
    """Open a conversation with the agent there. Raises ControlError."""
    host, token = resolve(ip), token_of_environment()
    with Session() as session:
        if not token and can_listen_at(host) and (talk := _of_this_host(session, ip, host, port)) is not None:
            yield talk
            return
        if warning := weakness_of(token):
            print(warning, file=sys.stderr)
        yield session.connect(host, port, token)


def _of_this_host(session: Session, ip: str, host: str, port: int) -> Conversation | None:
    """Return a conversation with the job of that agent, which needs no token here; None if no agent of ours is it."""
    for talk in session.connect_to_all_here():
        agents = talk.ask(StatusOf(), JobStatus).agents
        if any(each.port == port and host == each.host for each in agents):
            return talk
    return None


def command_parser() -> CommandParser:
    parser = CommandParser(
        prog=OOBLECK,
        description="List the agents of a running job, one on each host, or let one go. It is also called oobleck.",
        epilog=EPILOG,
        usage=f"{OOBLECK} --ip HOST --port PORT get_agent_list\n"
        f"       {OOBLECK} --ip HOST --port PORT kill_agent --agent_index INDEX",
    )
    parser.add_argument("--ip", required=True, metavar="HOST", help="the host of any agent, such as the coordinator")
    parser.add_argument("--port", required=True, type=int, help="the port of that agent")
    parser.add_argument("command", choices=["get_agent_list", "kill_agent"], help="what to do")
    parser.add_argument(
        "--agent_index", "--agent-index", type=int, metavar="INDEX", help="which agent kill_agent ends, by the list"
    )
    return parser
