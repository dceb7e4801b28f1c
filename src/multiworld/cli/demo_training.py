"""``multiworld demo training``: four replicas train, some are killed, and nothing else changes."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..command_parser import CommandParser
from ..demo.training.curve import draw_curve
from ..demo.training.options import TrainingDemoOptions
from ..process.interruptible import run_interruptible
from ..process.interruption import SIGNALLED, Interrupted
from .checks import check_output, write_output

if TYPE_CHECKING:
    from ..demo.training.report import Report

NAME = "multiworld demo training"


def main(arguments: Sequence[str]) -> int:
    """Run the demo: 0 if everything held, 1 if not, 130 after Ctrl-C."""
    parser = command_parser()
    parsed = parser.parse_args(arguments)
    if parsed.json is not None:
        check_output(parser, "--json", parsed.json)
    try:
        options = TrainingDemoOptions(
            steps=parsed.steps, replicas=parsed.replicas, kills=parsed.kills, seed=parsed.seed
        )
    except ValueError as error:
        parser.error(str(error))
    print("loading PyTorch", file=sys.stderr, flush=True)
    from ..demo.training.run import run

    try:
        report = run_interruptible(run(options, lambda text: print(text, flush=True)))
    except Interrupted as interrupted:
        print(f"{NAME}: {interrupted}; all its processes have ended", file=sys.stderr)
        return SIGNALLED + interrupted.signum
    show(report)
    text = json.dumps(report.as_json(), indent=2)
    is_written = parsed.json is None or write_output(f"{NAME}: --json", parsed.json, text)
    return 0 if report.holds and is_written else 1


def show(report: Report) -> None:
    print("\n".join(["", *draw_curve(report.disturbed.losses(), {kill.step for kill in report.disturbed.kills})]))
    if report.error:
        print(f"\n{report.error}")
    checks = report.checks()
    width = max(len(check.name) for check in checks)
    verdicts = {True: "  ok", False: "  FAILED", None: ""}
    print("\n" + "\n".join(f"  {each.name:<{width}}  {each.value}{verdicts[each.holds]}" for each in checks))
    failed = "; ".join(check.name for check in checks if check.holds is False)
    print("\nEverything held." if report.holds else f"\nIt did NOT hold: {failed or 'the run ended early'}")


def command_parser() -> CommandParser:
    parser = CommandParser(
        prog=NAME,
        description="Train a byte-level GPT on the source of Python's standard library: first on one replica "
        "undisturbed, then on four with some killed by SIGKILL at steps that the seed decides. Compare the loss of "
        "each step and the parameters at the end.",
        epilog="Exit status: 0 if everything held, 1 if anything did not, 130 after Ctrl-C.",
    )
    parser.add_argument("--steps", type=int, default=120, help="of the training (default: %(default)s)")
    parser.add_argument("--replicas", type=int, default=4, help="processes that train (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=4, help="how many are killed (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="model, data, dropout and kills (default: 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements to FILE too")
    return parser
