"""``multiworld demo``: the main job. Reads the options; imports torch only to run."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..command_parser import CommandParser
from ..demo.options import Options
from ..extras import SERVING, install_extra, missing_modules
from ..process.interruptible import run_interruptible
from ..process.interruption import SIGNALLED, Interrupted
from . import demo_training
from .checks import check_backend, check_output, note_uncompiled, write_output
from .streams import OutputError

if TYPE_CHECKING:
    from ..demo.report import Report

NEEDED = (*SERVING, "sklearn", "yaml")
UNREAD = SIGNALLED + signal.SIGPIPE  # whoever read the output did not want to know how it ends


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the main job: 0 if everything held, 1 if not, 2 if it cannot run here, 130 after Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] == "training":
        return demo_training.main(arguments[1:])
    parser = command_parser()
    parsed = parser.parse_args(arguments)
    missing = missing_modules(NEEDED)
    if missing:
        print(f"multiworld demo needs {', '.join(missing)}: {install_extra('demo')}", file=sys.stderr)
        return 2
    if parsed.json is not None:
        check_output(parser, "--json", parsed.json)
    note_uncompiled("demo")
    print("loading PyTorch", file=sys.stderr, flush=True)
    try:
        options = Options(
            seconds=parsed.seconds, seed=parsed.seed, backend=parsed.backend, inject_faults=not parsed.no_faults
        )
        check_backend(options.backend)
    except ValueError as error:
        parser.error(str(error))
    from ..demo import display, run  # noqa: F401 - all that takes time, while a signal ends this at once

    try:
        report = run_interruptible(_run(options))
    except Interrupted as interrupted:
        print(f"multiworld demo: {interrupted}; all its processes have ended", file=sys.stderr)
        return SIGNALLED + interrupted.signum
    except OutputError as error:
        error.status_unread = UNREAD
        raise
    text = json.dumps(report.as_json(), indent=2)
    is_written = parsed.json is None or write_output("multiworld demo: --json", parsed.json, text)
    return 0 if report.holds and is_written else 1


async def _run(options: Options) -> Report:
    from ..demo.display import choose_display
    from ..demo.run import run

    logging.getLogger("multiworld").setLevel(logging.ERROR)  # the display tells what breaks, in fewer words
    with contextlib.closing(choose_display()) as display:
        return await run(options, display)


def command_parser() -> CommandParser:
    parser = CommandParser(
        prog="multiworld demo",
        description="Train a small model on scikit-learn's handwritten digits, cut it in three stages, serve the "
        "held-out images through the replicas a, {b, b}, c (a process each, a world per edge) under continuous load, "
        "kill and freeze replicas meanwhile, and check every answer against the model in a single process.",
        epilog="There is another one: multiworld demo training. "
        "Exit status: 0 if everything held, 1 if anything did not, 2 if it cannot run here, 130 after Ctrl-C.",
    )
    parser.add_argument("--seconds", type=float, default=18.0, help="length of the load (default: %(default)g)")
    parser.add_argument("--seed", type=int, default=0, help="split, training and faults (default: 0)")
    parser.add_argument("--backend", default="auto", help="channel of the worlds: auto, tcp, gloo (default: auto)")
    parser.add_argument("--no-faults", action="store_true", help="serve without killing or freezing anything")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements to FILE too")
    return parser
