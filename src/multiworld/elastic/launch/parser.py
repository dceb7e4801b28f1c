"""The launcher's command line: every option of torchrun, by torchrun's own parser, and ours beside them."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch.distributed.argparse_util import check_env, env
from torch.distributed.run import get_args_parser

from ...command_parser import CommandParser
from ...wire.endpoints.addresses import is_address
from ...world.liveness import DEFAULT_LEASE_S
from ..job.options import DEFAULT_PAGE, RestartBudget, RestartPolicy
from .command_line import AmbiguousOptionError, split_at_script

RUN = "multiworld run"
LAUNCH = "python -m multiworld.launch"
ELSEWHERE = {
    "--job": "did you mean '--rdzv-id'?",
    "--min-replicas": "which the program says: training.join(..., min_replicas=N)",
    "--checkpoint": "which the program says: training.join(..., checkpoint=training.Checkpoint(DIR))",
    "--record": "did you mean '--log-dir'?",
}
"""Options that users try here, as another command, a configuration file or a program has the name; what to do."""
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
EPILOG = """\
examples:
  multiworld run --nproc-per-node 4 train.py --epochs 3
  multiworld run --nproc-per-node 4 --restart worker --max-restarts 3/10m --spares 1 serve.py
  multiworld run --nnodes 1:8 --rdzv-backend c10d --rdzv-endpoint host0:29400 --rdzv-id job7 train.py

An option that is not given is read from PET_ and its name, as with torchrun: PET_NPROC_PER_NODE=4, PET_WARM=0.
MULTIWORLD_TOKEN holds the secret that all hosts of a job share.

Exit status: that of the worker that failed first (128 + N if signal N ended it), 0 if all workers ended well or the
job was drained, 2 for a command that makes no sense, 128 + N if signal N ended the launcher, 1 for other errors."""


def run_parser(prog: str = RUN) -> argparse.ArgumentParser:
    """Return the parser of ``multiworld run``. Its defaults come from the ``PET_`` variables of this moment.

    ``prog``: the command that the user has typed. Raises ValueError for such a variable that no option can have.
    """
    return _parser(prog, "Start workers on this host and watch them; start again only what failed.")


def launch_parser() -> argparse.ArgumentParser:
    """Return the parser for command lines of ``torch.distributed.launch``: torchrun's and ``--use-env``."""
    parser = _parser(
        LAUNCH,
        "As 'multiworld run', for programs written for torch.distributed.launch: each worker gets --local-rank=N "
        "before its arguments.",
    )
    parser.add_argument(
        "--use-env", "--use_env", action="store_true", help="Do not pass --local-rank=N: workers read LOCAL_RANK."
    )
    return parser


class _Parser(CommandParser):
    """Leaves to the script what stands after it; says what is wrong in one line, without the usage of all options."""

    preferred: frozenset[str] = frozenset()
    """The options whose abbreviations stand for nothing else: torchrun's."""
    missing = "no program is given: name the script to run after the options"

    def parse_known_args(  # type: ignore[override]  # its overloads are for other classes of namespaces
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        given = sys.argv[1:] if args is None else list(args)
        try:
            ours, of_script = split_at_script(given, self._option_string_actions, self.preferred)
        except AmbiguousOptionError as error:
            self.error(str(error))
        parsed, unknown = super().parse_known_args(ours, namespace)
        parsed.training_script_args = of_script
        return parsed, unknown

    def hint(self, given: str) -> str | None:
        name = given.partition("=")[0].replace("_", "-")
        return f"unrecognized arguments: {given}, {ELSEWHERE[name]}" if name in ELSEWHERE else super().hint(given)


class _Switch(check_env):
    """``--name`` and ``--no-name`` for one value that is on unless ``PET_NAME=0``."""

    def __init__(self, dest: str, **settings: Any) -> None:
        super().__init__(dest, default=True, **settings)

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        setattr(namespace, self.dest, not (option or "").startswith("--no"))


class _NoCompletion(argparse.Action):
    """``--print-completion SHELL`` of torchrun since PyTorch 2.14, whose script completes torchrun alone."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        parser.error(f"{option} is not taken here: multiworld completion {values} prints a script for all commands")


def _parser(prog: str, description: str) -> argparse.ArgumentParser:
    try:
        torchruns = get_args_parser()
        parser = _Parser(
            prog=prog,
            description=description,
            epilog=EPILOG,
            usage=f"{prog} [OPTIONS] SCRIPT [ARGUMENTS OF SCRIPT]",
            allow_abbrev=True,
            parents=[torchruns],
            conflict_handler="resolve",  # two options are given a wider meaning by ours
        )
        parser.preferred = frozenset(torchruns._option_string_actions)
        _add_newer(parser, is_known="--print-completion" in torchruns._option_string_actions)
        _add_ours(parser)
    except ValueError as error:
        raise ValueError(f"a PET_ variable that stands for a switch must be 0 or 1: {error}") from error
    return parser


def _add_newer(parser: argparse.ArgumentParser, *, is_known: bool) -> None:
    """Add what torchrun takes since PyTorch 2.14, for every release. ``is_known``: it is one of those."""
    parser.add_argument(
        "--log-line-prefix-template",
        "--log_line_prefix_template",
        action=env,
        default="",
        metavar="TEXT",
        help="What stands before each line of a worker on the console, with ${role_name}, ${local_rank}, ${rank} and "
        "${hostname}; default: TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, or [role rank generation].",
    )
    if is_known:
        parser.add_argument(
            "--print-completion", "--print_completion", action=_NoCompletion, metavar="SHELL", help=argparse.SUPPRESS
        )


def _add_ours(parser: argparse.ArgumentParser) -> None:
    torchruns, positionals = parser._optionals, parser._positionals
    torchruns.title = "options of torchrun"
    _add_restarts(parser.add_argument_group("hosts and restarts (torchrun has the first two in another form)"))
    _add_start(parser.add_argument_group("how workers are started (not in torchrun)"))
    _add_waits(parser.add_argument_group("how long is waited (not in torchrun)"))
    _add_page(parser.add_argument_group("the live page (not in torchrun)"))
    ours = [each for each in parser._action_groups if each not in (torchruns, positionals)]
    parser._action_groups[:] = [positionals, *ours, torchruns]  # what somebody looks for here is not in torchrun's help


def _add(group: argparse._ArgumentGroup, name: str, about: str, **settings: Any) -> None:
    """Add ``--name``, in both spellings if it has a hyphen, with a ``PET_`` variable."""
    spellings = dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}"))
    group.add_argument(*spellings, action=env, help=about, **settings)


def _add_restarts(group: argparse._ArgumentGroup) -> None:
    _add(
        group,
        "nnodes",
        "Number of hosts; or a range in which hosts may come and go while workers run; and, after +, the number "
        "of spare hosts that wait to replace others.",
        default="1:1",
        metavar="N | MIN:MAX | ...+SPARE",
    )
    _add(
        group,
        "max-restarts",
        "How often a worker (with --restart all: the job) is started again before the job fails; 3/10m: three "
        "times within any ten minutes (s, m or h). Default: 3/10m for programs that use multiworld, 0 for others.",
        type=_budget,
        metavar="N[/TIME]",
    )
    _add(
        group,
        "restart",
        "What is started again when a worker fails: that worker; also those that share a world with it; all, as "
        "torchrun does. Default: auto, worker for programs that use multiworld and all for others.",
        type=_restart,
        default=RestartPolicy.AUTO,
        metavar="{worker,world,all,auto}",
    )
    _add(
        group,
        "host-name",
        "What this host is called by 'multiworld status', agents and events, and in errors (default: its own name).",
        metavar="NAME",
    )
    about = "Workers kept ready on this host, to replace one at once."
    _add(group, "spares", about, type=int, default=0, metavar="N")


def _add_start(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--warm",
        "--no-warm",
        "--no_warm",
        action=_Switch,
        dest="warm",
        help="Fork Python workers from a process that has imported torch already (default), or start interpreters.",
    )
    about = "Modules that the process imports, besides torch, from which workers are forked."
    _add(group, "preload", about, type=_names, default=(), metavar="MODULE,...")


def _add_waits(group: argparse._ArgumentGroup) -> None:
    _add(
        group,
        "progress-timeout",
        "End a worker, after a dump of its stacks, that has called multiworld.elastic.progress() and then does "
        "not for this long. Default: none is ended for that.",
        type=_seconds,
        metavar="SECONDS",
    )
    _add(
        group,
        "lease-s",
        "How long a worker or a host may be stopped or unreachable before it is given up "
        f"(default: {DEFAULT_LEASE_S:g}).",
        type=_seconds,
        default=DEFAULT_LEASE_S,
        metavar="SECONDS",
    )
    _add(
        group,
        "cut-off-timeout",
        "How long a host that is cut off from most others waits for them, its workers ended, before it gives up; "
        "0: no longer than it takes to be sure of it, the lease and 3 s (default: join_timeout of --rdzv-conf, 600).",
        type=partial(_seconds, or_none=True),
        metavar="SECONDS",
    )


def _add_page(group: argparse._ArgumentGroup) -> None:
    _add(
        group,
        "page",
        "Where the coordinator serves its live page, and /metrics for Prometheus: a numeric address, and 0 for "
        "any free port (default: 127.0.0.1:0). Others than this host need the token to read it.",
        type=_page,
        default=DEFAULT_PAGE,
        metavar="HOST:PORT",
    )
    group.add_argument("--no-page", "--no_page", action="store_const", const=None, dest="page", help="Serve no page.")


def _budget(text: str) -> RestartBudget:
    matched = re.fullmatch(r"(\d+)(?:/(\d+(?:\.\d+)?)([smh]))?", text.strip())
    if matched is None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number >= 0, or one per time such as 3/10m (s, m or h)")
    number, time, unit = matched.groups()
    try:
        return RestartBudget(max_restarts=int(number), per_s=None if time is None else float(time) * SECONDS[unit])
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error


def _restart(text: str) -> RestartPolicy:
    try:
        return RestartPolicy(text)
    except ValueError as error:
        expected = ", ".join(policy.value for policy in RestartPolicy)
        raise argparse.ArgumentTypeError(f"{text!r}: expected one of {expected}") from error


def _page(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = {"localhost": "127.0.0.1"}.get(host, host.removeprefix("[").removesuffix("]"))
    if not is_address(host) or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a numeric address and a port, such as 127.0.0.1:8080")
    return host, int(port)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in (part.strip() for part in text.split(",")) if name)


def _seconds(text: str, *, or_none: bool = False) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf") or (seconds == 0 and not or_none):
        expected = "a number of seconds, 0 or more" if or_none else "a positive number of seconds"
        raise argparse.ArgumentTypeError(f"{text!r}: expected {expected}")
    return seconds
