"""``multiworld exec``: start ranks of any program, here or on several hosts over ssh, as mpiexec does."""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence

from ..elastic.remote_hosts import RemoteJob, allot
from ..elastic.remote_start import run_on_hosts
from ..wire.token import TOKEN_VARIABLE, weakness_of

__all__ = ["main"]

BAD_INPUT = 2
FIRST_PORT, NUM_PORTS = 20000, 10000  # below Linux's ports for outgoing connections
PREFIX_VARIABLE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
EPILOG = """\
examples:
  multiworld exec -n 4 python prog.py --epochs 3
  multiworld exec --hosts node1:4,node2:4 -x NCCL_DEBUG=INFO python prog.py
  multiworld exec -n 8 --hosts node1,node2 --ssh 'srun --nodes=1 --ntasks=1 --overlap --nodelist' python prog.py

Each rank finds RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in its environment. If one fails, the others
are ended, and nothing is started again: 'multiworld run' does that. Ctrl-C ends all ranks on all hosts.

On other hosts the program runs in a directory of the same name, and gets no variables of this environment but those
named with -x. The host names must mean the same everywhere. No secret stands on any command line.

Exit status: that of the rank that failed first (128 + N if signal N ended it), 0 if all ended well, 2 for a command
that makes no sense, 128 + N if signal N ended this command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a program on every rank; see the epilogue for what is returned."""
    options = _parser().parse_args(arguments)
    try:
        variables = _variables(options.variables, os.environ)
        if options.hosts is not None:
            return run_on_hosts(_job(options, variables), _tell)
        _check_here(options.n, options.program)
    except ValueError as error:
        _tell(str(error))
        return BAD_INPUT
    from .run import main as run  # which needs torch

    os.environ.update(variables)
    if not options.prefix:
        os.environ.setdefault(PREFIX_VARIABLE, "")
    alone = ["--standalone", "--nnodes=1", f"--nproc-per-node={options.n}", "--restart=all", "--max-restarts=0"]
    return run([*alone, "--no-python", *options.program])


def _job(options: argparse.Namespace, variables: Mapping[str, str]) -> RemoteJob:
    ssh = shlex.split(options.ssh)
    if not ssh:
        raise ValueError("--ssh: expected a command, such as 'ssh -oBatchMode=yes'")
    if not options.program:
        raise ValueError("no program: multiworld exec [OPTIONS] PROGRAM [ARGUMENTS OF PROGRAM]")
    if warning := weakness_of(os.environ.get(TOKEN_VARIABLE, "")):
        _tell(warning)
    own = {TOKEN_VARIABLE: os.environ.get(TOKEN_VARIABLE) or secrets.token_hex(16)}
    if not options.prefix:
        own[PREFIX_VARIABLE] = ""
    return RemoteJob(
        shares=allot(options.hosts, options.n),
        program=tuple(options.program),
        run_id=f"exec-{secrets.token_hex(4)}",
        port=options.port or FIRST_PORT + secrets.randbelow(NUM_PORTS),
        directory=os.getcwd(),
        python=options.python,
        ssh=tuple(ssh),
        variables={**own, **variables},
    )


def _check_here(num_ranks: int | None, program: Sequence[str]) -> None:
    if num_ranks is None:
        raise ValueError("how many ranks? give -n N, or --hosts")
    if num_ranks < 1:
        raise ValueError(f"-n {num_ranks}: expected at least 1")
    if not program:
        raise ValueError("no program: multiworld exec [OPTIONS] PROGRAM [ARGUMENTS OF PROGRAM]")
    if shutil.which(program[0]) is None:
        hint = f" (multiworld exec ... python {program[0]}?)" if program[0].endswith(".py") else ""
        raise ValueError(f"{program[0]} is no command here{hint}")


def _variables(given: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    variables = {}
    for text in given:
        name, assigned, value = text.partition("=")
        if not name or (not assigned and name not in environ):
            raise ValueError(f"-x {text}: expected NAME=VALUE, or the name of a variable that is set here")
        variables[name] = value if assigned else environ[name]
    return variables


def _tell(what: str) -> None:
    print(f"multiworld exec: {what}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="multiworld exec",
        description="Start ranks of any program, here or on several hosts.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="multiworld exec [-n N] [--hosts HOST[:N],...] [OPTIONS] PROGRAM [ARGUMENTS OF PROGRAM]",
        allow_abbrev=False,
    )
    parser.add_argument("-n", "-np", "--np", type=int, metavar="N", dest="n", help="how many ranks in all")
    parser.add_argument(
        "--hosts",
        metavar="HOST[:N],...",
        help="where, and how many ranks on each; hosts without a number share the rest of -n, or get one each",
    )
    parser.add_argument(
        "--ssh",
        default="ssh -oBatchMode=yes",
        metavar="COMMAND",
        help="what reaches a host: it is given the host and a command line (default: ssh -oBatchMode=yes)",
    )
    parser.add_argument("--python", default=sys.executable, help="Python on the hosts (default: the path of this one)")
    parser.add_argument("--port", type=int, help="where the first host is met (default: one of 20000 to 29999)")
    parser.add_argument(
        "-x",
        "--env",
        action="append",
        default=[],
        dest="variables",
        metavar="NAME[=VALUE]",
        help="a variable for the ranks: as it is here, or with this value; may be given often",
    )
    parser.add_argument("-l", "--prefix", action="store_true", help="begin each line of the ranks with [role rank ...]")
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser
