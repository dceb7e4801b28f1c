"""``multiworld scale``: say how many hosts of an elastic job are to have ranks."""

from __future__ import annotations

from collections.abc import Sequence

from ..command_parser import CommandParser
from ..elastic.control.messages import Scale
from .cluster import carry_out, cluster_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Scale: 0, or 1 if the job refuses or cannot be asked."""
    options = command_parser().parse_args(arguments)
    return carry_out("scale", options, Scale(nodes=options.nodes))


def command_parser() -> CommandParser:
    parser = cluster_parser(
        "scale",
        "Say how many hosts are to have ranks, within --nnodes MIN:MAX. The last ones beyond that end their workers "
        "gracefully and wait, as spares do; hosts that wait get ranks if more are wanted.",
    )
    parser.add_argument("nodes", type=int, metavar="N", help="number of hosts")
    return parser
