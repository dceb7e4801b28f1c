"""``multiworld kill``: end a worker or an agent as a fault would, to see that the job survives it."""

from __future__ import annotations

from collections.abc import Sequence

from ..command_parser import CommandParser
from ..elastic.control.messages import Kill
from .cluster import carry_out, cluster_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill: 0, 1 if the job refuses or cannot be asked, 2 for a command that makes no sense."""
    parser = command_parser()
    options = parser.parse_args(arguments)
    if (options.rank is None) == (options.agent is None):
        parser.error("expected a RANK, or --agent INDEX")
    return carry_out("kill", options, Kill(rank=options.rank, agent=options.agent))


def command_parser() -> CommandParser:
    parser = cluster_parser("kill", "Send SIGKILL to a worker or an agent; the job takes it as any other failure.")
    parser.add_argument("rank", nargs="?", type=int, metavar="RANK", help="the worker of this rank")
    parser.add_argument(
        "--agent", "--agent_index", "--agent-index", metavar="INDEX|HOST", help="the agent of this number or host"
    )
    return parser
