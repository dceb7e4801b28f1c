"""``multiworld train``: run a training under the launcher, look at one that runs, or explain one that ran."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial

from ..command_parser import CommandParser
from ..elastic.job.options import RestartBudget
from . import train_hosts, train_plan, train_report, train_simulate, train_status
from .train_file import EXAMPLE, FILES, load
from .train_hosts import LaunchLine, host_options, take_host_options

TRAIN = "multiworld train"
BAD_INPUT = 2
ABOUT = {
    "status": "How a running training is: steps, replicas, loss, goodput, the last recovery.",
    "report": "What happened in a training, from its record: failures, recoveries, goodput, slow ranks.",
    "plan": "How pipelines divide a model among nodes: templates, predicted times, pictures.",
    "simulate": "What failures cost, replayed over a plan; Oobleck's published setting among them.",
}
VERBS: dict[str, Callable[[Sequence[str]], int]] = {
    "status": train_status.main,
    "report": train_report.main,
    "plan": train_plan.main,
    "simulate": train_simulate.main,
}
"""What may follow ``train`` in place of a file."""
DEFAULTS = {"PET_RESTART": "--restart=worker"}
"""What differs from ``multiworld run``, by the variable that says otherwise."""
BUDGET = RestartBudget(max_restarts=10, per_s=600.0)
EPILOG = (
    """\
examples:
  multiworld train --nproc-per-node 4 train.py --epochs 3
  multiworld train --nproc-per-node 4 --log-dir logs train.py
  multiworld train training.yaml
  multiworld train --hostfile hosts --tag gpt2 train.py --epochs 3
  multiworld train status
  multiworld train report --svg what-happened.svg logs
  multiworld train plan --layers 48 --nodes 8

All options of 'multiworld run' may stand before FILE (its --help lists them); they override what a configuration file
says. Unlike there, a worker that fails is started again by itself, up to 10 times in any ten minutes, unless
all fail alike soon after the start. With --log-dir,
each process records what happens to the training in DIR/RUN/training.

A configuration file (.yaml, .yml or .json) may say:
"""
    + EXAMPLE
    + """

and spares, restart, max_restarts, job (--rdzv-id), rdzv_backend, rdzv_endpoint, lease_s, progress_timeout_s, page and
log_dir, as the options of the same names. Paths are relative to the file's folder.

Exit status: that of 'multiworld run'."""
)
DESCRIPTION = (
    "Run a training: FILE is a Python program, or a configuration. Of one that runs, or has run:\n\n"
    + "\n".join(f"  multiworld train {verb:<10}{about}" for verb, about in ABOUT.items())
)


def main(arguments: Sequence[str]) -> int:
    """Run one of them and return the exit status: see the epilogue."""
    if arguments and arguments[0] in VERBS:
        return VERBS[arguments[0]](arguments[1:])
    from ..serving.config.problems import ConfigError

    try:
        if not arguments or any(each in ("-h", "--help") for each in _before_file(arguments)):
            parser = command_parser()
            parser.parse_args(["--help"] if arguments else [])
        asked, line = launch_line(arguments)
        if asked.hostfile is not None:
            return train_hosts.run(asked, line)
    except (ConfigError, ValueError) as error:
        print(f"{TRAIN}: {error}", file=sys.stderr)
        return BAD_INPUT
    # workers are forked from this process, whose interpreter has read that variable already
    os.environ.update(line.variables)
    sys.path[1:1] = [each for each in line.variables.get("PYTHONPATH", "").split(os.pathsep) if each]
    from ..run import launcher_of  # which needs torch
    from .job_end import told

    launch = launcher_of(TRAIN, may_run_apart=False, is_announced=True, default_budget=BUDGET)
    return told(TRAIN, partial(launch, in_place=True), [*line.options, *line.program])


def command_line(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the launcher's command line, and the variables that the workers get.

    Raises ConfigError for a file that makes no sense, ValueError for options that do not.
    """
    _, line = launch_line(arguments)
    return [*line.options, *line.program], dict(line.variables)


def launch_line(arguments: Sequence[str]) -> tuple[argparse.Namespace, LaunchLine]:
    """Return what is said of hosts, and what their launchers are to do. Raises as ``command_line``."""
    before = _before_file(arguments)
    asked, ours = take_host_options(before)
    if len(ours) == 1 and not os.path.exists(ours[0]) and (close := difflib.get_close_matches(ours[0], VERBS, n=1)):
        raise ValueError(f"no such script: {ours[0]}, did you mean '{TRAIN} {close[0]}'?")
    defaults = [option for variable, option in DEFAULTS.items() if variable not in os.environ]
    of_program = list(arguments)[len(before) :]
    at = max(0, len(ours) - 1 - (ours[-2:-1] == ["--"]))
    if not ours or not ours[-1].endswith(FILES) or ours[-1].startswith("-"):
        return asked, LaunchLine(options=(*defaults, *ours[:at]), program=(*ours[at:], *of_program))
    read = load(ours[-1])
    options = (*defaults, *read.options, *ours[:at])
    program = (*read.program, *read.arguments, *of_program)
    return asked, LaunchLine(options=options, program=program, variables=dict(read.environment))


def _before_file(arguments: Sequence[str]) -> list[str]:
    """Return the launcher's options and the file. Raises ValueError for an ambiguous abbreviation."""
    from ..elastic.launch.command_line import split_at_script
    from ..elastic.launch.parser import run_parser  # which needs torch

    parser = run_parser(TRAIN)
    preferred: frozenset[str] = getattr(parser, "preferred", frozenset())
    options = {**parser._option_string_actions, **host_options()._option_string_actions}
    ours, _ = split_at_script(list(arguments), options, preferred)
    return ours


def command_parser() -> CommandParser:
    """Return the parser that shows the help, and completes; the launcher's own takes the line."""
    parser = CommandParser(
        prog=TRAIN,
        description=DESCRIPTION,
        epilog=EPILOG,
        usage=f"{TRAIN} [OPTIONS OF multiworld run] FILE [ARGUMENTS OF FILE]\n"
        f"       {TRAIN} --hostfile HOSTS [OPTIONS] FILE [ARGUMENTS OF FILE]\n       {TRAIN} {{{','.join(VERBS)}}} ...",
        parents=[host_options()],
    )
    parser.add_argument("--nproc-per-node", metavar="N", help="replicas on this host (default: 1)")
    parser.add_argument("--nnodes", metavar="N | MIN:MAX | ...+SPARE", help="hosts (default: 1)")
    parser.add_argument("--log-dir", metavar="DIR", help="logs of the workers, and the record of the training")
    parser.add_argument("file", metavar="FILE", help="train.py, or training.yaml")
    return parser


def parsers() -> dict[str, CommandParser]:
    """Return the parsers of what follows ``train`` in place of a file, by its name."""
    return {
        "status": train_status.command_parser(),
        "report": train_report.command_parser(),
        "plan": train_plan.command_parser(),
        "simulate": train_simulate.command_parser(),
    }
