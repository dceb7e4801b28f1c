"""``multiworld train simulate``: replay failures over a model's profile, or Oobleck's published setting."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..command_parser import CommandParser
from .planning_options import told, write_picture

if TYPE_CHECKING:
    from ..training.simulating.compared import Row
    from ..training.view.simulated_picture import Panel

SIMULATE = "multiworld train simulate"
EPILOG = """\
examples:
  multiworld train simulate --published
  multiworld train simulate --published --only GCP --only "GPT-3 6.7b" --svg gcp.svg

--published is the setting of Oobleck's paper (SOSP'23): five models, 30 nodes, a loss every 6 h to 10 min until 16
nodes are left, and spot instances of GCP and EC2. The rates are those that its authors published.

Exit status: 0, 2 for what cannot be simulated, with the reason."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what came of it: 0, or 2 for what makes no sense."""
    options = command_parser().parse_args(arguments)

    def work() -> None:
        _published(options.only, options.json, options.svg)

    return told(SIMULATE, work)


def command_parser() -> CommandParser:
    parser = CommandParser(
        prog=SIMULATE,
        description="Replay failures over a training, by arithmetic: samples a second, and where the time goes.",
        epilog=EPILOG,
    )
    parser.add_argument("--published", action="store_true", help="the published setting of Oobleck, beside Oobleck")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="of --published: a trace, or a model; repeatable"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--svg", metavar="FILE", help="draw samples a second over time; -: to standard output")
    return parser


def _published(only: Sequence[str], as_json: bool, svg: str | None) -> None:
    from ..training.view.simulated import published_json, published_text
    from ..training.view.simulated_picture import simulated_picture

    rows = _rows(only)
    if svg is not None:
        write_picture(svg, simulated_picture([_panel(row) for row in rows]))
    if as_json:
        print(json.dumps(published_json(rows), indent=2))
    elif svg != "-":
        print(published_text(rows))


def _rows(only: Sequence[str]) -> list[Row]:
    """Return the rows of these traces and models, by name. Raises ValueError for others."""
    from ..training.simulating.compared import rows
    from ..training.simulating.published import MODELS
    from ..training.simulating.published_traces import TRACES

    models = [each.name for each in MODELS]
    for name in only:
        if name not in TRACES and name not in models:
            raise ValueError(f"--only {name!r}: expected one of {', '.join((*TRACES, *models))}")
    return list(rows([each for each in only if each in TRACES], [each for each in only if each in models]))


def _panel(row: Row) -> Panel:
    from ..training.view.simulated_picture import Panel

    means = [
        (f"{name} as published", mean)
        for name, mean in (("Oobleck", row.published.oobleck), ("Varuna", row.published.varuna))
        if mean > 0
    ]
    return Panel(title=f"{row.trace.name}, {row.model.name}", found=[row.ours, row.oobleck], means=means)
