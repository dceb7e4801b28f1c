"""``multiworld exec``: start ranks of any program, here or on several hosts over ssh, as mpiexec does."""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import partial

from ..command_parser import CommandParser
from ..elastic.hosts.own_host import is_this_host
from ..elastic.hosts.shares import HostShare, RemoteJob, allot, shares_of_file
from ..elastic.hosts.start import run_on_hosts
from ..wire.endpoints.token import TOKEN_VARIABLE, weakness_of

EXEC = "multiworld exec"
SSH = "ssh -oBatchMode=yes"
BAD_INPUT = 2
NO_RESTARTS = "exec starts nothing again"
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
named with -x. The host names must mean the same everywhere. No secret stands on any command line. This host needs no
ssh. Standard input is rank 0's if all ranks run here, and nobody's else.

Exit status: that of the rank that failed first (128 + N if signal N ended it), 0 if all ended well, 2 for a command
that makes no sense, 128 + N if signal N ended this command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a program on every rank; see the epilogue for what is returned."""
    options = command_parser().parse_args(arguments)
    try:
        program = _program(options.program)
        variables = variables_of(options.variables, os.environ)
        directory = _directory(options.wdir)
        shares = _shares(options)
        here = _those_here(shares, has_own_ssh=options.ssh is not None)
        if len(here) < len(shares):
            return run_on_hosts(_job(options, shares, here, program, directory, variables), _tell)
        num_ranks = sum(share.num_ranks for share in shares) if shares else options.n
        _enter(directory)
        _check_here(num_ranks, program)
    except ValueError as error:
        _tell(str(error))
        return BAD_INPUT
    os.environ.update(variables)
    if not options.prefix:
        os.environ.setdefault(PREFIX_VARIABLE, "")
    alone = ["--standalone", "--nnodes=1", f"--nproc-per-node={num_ranks}", "--restart=all", "--max-restarts=0"]
    return _run([*alone, "--no-python", *program])


def part() -> int:
    """Run one host's part of a job that another host has started, by arguments of ``multiworld run``."""
    return _run(sys.argv[1:])


def _run(arguments: Sequence[str]) -> int:
    from ..run import launcher_of  # which needs torch
    from .job_end import told

    return told(EXEC, partial(launcher_of(only_rank_0_reads=True, more_restarts=NO_RESTARTS), in_place=True), arguments)


def _program(given: Sequence[str]) -> list[str]:
    """Return the program with its arguments. Raises ValueError for several, as mpiexec takes them."""
    program = list(given)
    if program[:1] == ["--"]:
        program = program[1:]
    elif ":" in program[1:]:
        raise ValueError(
            "':' stands between several programs for mpiexec, and exec starts one: let it look at RANK, or start each "
            "with an exec of its own. If ':' is an argument of the program, put -- before the program"
        )
    if not program:
        raise ValueError("no program: multiworld exec [OPTIONS] PROGRAM [ARGUMENTS OF PROGRAM]")
    return program


def _directory(given: str | None) -> str | None:
    return None if given is None else os.path.abspath(given)


def _enter(directory: str | None) -> None:
    if directory is not None:
        try:
            os.chdir(directory)
        except OSError as error:
            raise ValueError(f"--wdir {directory}: {error.strerror}") from error


def _shares(options: argparse.Namespace) -> tuple[HostShare, ...]:
    """Return the hosts with their ranks; none if no host is named."""
    if options.hosts is not None and options.hostfile is not None:
        raise ValueError("--hosts and --hostfile exclude each other")
    if options.hosts is not None:
        return allot(options.hosts, options.n)
    if options.hostfile is None:
        return ()
    try:
        with open(options.hostfile, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ValueError(f"--hostfile {options.hostfile}: {reason}") from error
    return shares_of_file(text, options.hostfile, options.n)


def _those_here(shares: Sequence[HostShare], *, has_own_ssh: bool) -> frozenset[int]:
    """Return which shares are this host's. Raises ValueError if other hosts could not reach it by that name.

    ``has_own_ssh``: the user names what starts something on a host, so that is asked for this one too.
    """
    if has_own_ssh:
        return frozenset()
    here = frozenset(index for index, share in enumerate(shares) if is_this_host(share.name))
    if 0 in here and len(here) < len(shares) and shares[0].is_only_for_itself:
        raise ValueError(
            f"{shares[0].name}: the other hosts cannot reach this one by that name: give the one that they know it by"
        )
    return here


def _job(
    options: argparse.Namespace,
    shares: tuple[HostShare, ...],
    here: frozenset[int],
    program: Sequence[str],
    directory: str | None,
    variables: Mapping[str, str],
) -> RemoteJob:
    ssh = shlex.split(SSH if options.ssh is None else options.ssh)
    if not ssh:
        raise ValueError("--ssh: expected a command, such as 'ssh -oBatchMode=yes'")
    if warning := weakness_of(os.environ.get(TOKEN_VARIABLE, "")):
        _tell(warning)
    own = {TOKEN_VARIABLE: os.environ.get(TOKEN_VARIABLE) or secrets.token_hex(16)}
    if not options.prefix:
        own[PREFIX_VARIABLE] = ""
    return RemoteJob(
        shares=shares,
        program=tuple(program),
        here=here,
        run_id=f"exec-{secrets.token_hex(4)}",
        port=options.port or FIRST_PORT + secrets.randbelow(NUM_PORTS),
        directory=directory or os.getcwd(),
        python=options.python,
        ssh=tuple(ssh),
        variables={**own, **variables},
    )


def _check_here(num_ranks: int | None, program: Sequence[str]) -> None:
    if num_ranks is None:
        raise ValueError("how many ranks? give -n N, or --hosts")
    if num_ranks < 1:
        raise ValueError(f"-n {num_ranks}: expected at least 1")
    if shutil.which(program[0]) is None:
        hint = f" (multiworld exec ... python {program[0]}?)" if program[0].endswith(".py") else ""
        raise ValueError(f"{program[0]} is no command here{hint}")


def variables_of(given: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    variables = {}
    for text in given:
        name, assigned, value = text.partition("=")
        if not name or (not assigned and name not in environ):
            raise ValueError(f"-x {text}: expected NAME=VALUE, or the name of a variable that is set here")
        variables[name] = value if assigned else environ[name]
    return variables


def _tell(what: str) -> None:
    print(f"{EXEC}: {what}", file=sys.stderr, flush=True)


def command_parser() -> CommandParser:
    parser = CommandParser(
        prog=EXEC,
        description="Start ranks of any program, here or on several hosts.",
        epilog=EPILOG,
        usage=f"{EXEC} [-n N] [--hosts HOST[:N],... | --hostfile FILE] [OPTIONS] PROGRAM [ARGUMENTS OF PROGRAM]",
    )
    parser.add_argument("-n", "-np", "--np", type=int, metavar="N", dest="n", help="how many ranks in all")
    parser.add_argument(
        "--hosts",
        "--host",
        "-H",
        metavar="HOST[:N],...",
        help="where, and how many ranks on each; hosts without a number share the rest of -n, or get one each",
    )
    parser.add_argument(
        "--hostfile",
        "-hostfile",
        "--machinefile",
        "-machinefile",
        metavar="FILE",
        help="a file with a host in each line, and how many ranks it takes: 'host slots=N' or 'host:N'",
    )
    parser.add_argument(
        "--wdir", "-wdir", "--wd", "-wd", metavar="DIRECTORY", help="where the ranks run (default: this directory)"
    )
    parser.add_argument(
        "--ssh",
        metavar="COMMAND",
        help="what reaches a host: it is given the host and a command line (default: ssh -oBatchMode=yes, which is not "
        "asked for this host)",
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


if __name__ == "__main__":
    from .own_process import run_in_own_process

    sys.exit(run_in_own_process(EXEC, part))
