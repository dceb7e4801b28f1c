"""``multiworld scale``: say how many hosts of an elastic job are to have ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..command_parser import CommandParser
from ..elastic.control.messages import Done, Scale
from ..process.messages import to_json
from .cluster import cluster_parser, conversation, job_of, told

__all__ = ["command_parser", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Scale: 0, or 1 if the job refuses or cannot be asked."""
    parser = command_parser()
    options = parser.parse_args(arguments)

    def work() -> None:
        with conversation(options) as talk:
            job = job_of(talk)
            answer = talk.ask(Scale(nodes=options.nodes), Done)
        print(json.dumps(to_json(answer)) if options.json else f"job {job}: {answer.text}")

    return told("scale", work)


def command_parser() -> CommandParser:
    parser = cluster_parser(
        "scale",
        "Say how many hosts are to have ranks, within --nnodes MIN:MAX. The last ones beyond that end their workers "
        "gracefully and wait, as spares do; hosts that wait get ranks if more are wanted.",
    )
    parser.add_argument("nodes", type=int, metavar="N", help="number of hosts")
    return parser
