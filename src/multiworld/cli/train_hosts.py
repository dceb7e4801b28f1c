"""``multiworld train --hostfile``: the same training on the hosts of a file, each with an agent, over ssh."""

from __future__ import annotations

import argparse
import os
import re
import secrets
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..command_parser import CommandParser
from ..elastic.hosts.agents import run_agents
from ..elastic.hosts.hostfile import HostLine, parse_hostfile
from ..elastic.hosts.hostfile_job import HostfileJob
from ..elastic.hosts.own_host import is_this_host
from ..elastic.job.options import DEFAULT_SHUTDOWN_S
from ..wire.endpoints.token import TOKEN_VARIABLE, check_token, weakness_of
from .exec import FIRST_PORT, NUM_PORTS, variables_of

TRAIN = "multiworld train"
SSH = "ssh"
HERE_SAID = {
    "nproc_per_node": "slots= of the hostfile says how many workers a host gets",
    "rdzv_backend": "the hosts meet at the first one of the hostfile",
    "rdzv_endpoint": "the hosts meet at the first one of the hostfile (--port chooses its port)",
    "rdzv_id": "--tag names the job",
    "standalone": "a hostfile is for several hosts",
    "node_rank": "the order of the hostfile says it",
    "master_addr": "the hosts meet at the first one of the hostfile",
    "master_port": "--port says it",
    "local_addr": "each host of the hostfile has its own",
    "host_name": "each host of the hostfile has its own",
}
"""Options of the launcher that the hostfile stands for, and what says it."""
FORWARDED = ("PET_", "LOGLEVEL")
"""How variables begin that mean something to launchers: the hosts get them, as this one would have."""
AFTER_WORKERS_S = 15.0
ANY_NUMBER = "1:1"  # what the launcher's parser says where nobody does: the job goes on with any of the hosts


@dataclass(frozen=True, kw_only=True)
class LaunchLine:
    """What a launcher is to do. ``options`` are those of a configuration file, then those of the command line."""

    options: tuple[str, ...]
    program: tuple[str, ...]
    """With ``-m`` before a module, and its arguments."""
    variables: Mapping[str, str] = field(default_factory=dict)


def host_options() -> CommandParser:
    """Return the parser of the options that ``--hostfile`` brings; all others are the launcher's."""
    parser = CommandParser(prog=TRAIN, add_help=False)
    group = parser.add_argument_group("several hosts")
    group.add_argument(
        "--hostfile",
        metavar="FILE",
        help="start an agent on each of these hosts over ssh; a line is 'node1 slots=2 devices=0,1 port=22'",
    )
    group.add_argument("--tag", metavar="NAME", help="the job's name, as other commands take it with --job")
    group.add_argument("--ssh", metavar="COMMAND", help="what reaches a host, such as 'ssh -F FILE' (default: ssh)")
    group.add_argument(
        "--port", type=int, help="where the hosts meet on the first one (default: one of 20000 to 29999)"
    )
    group.add_argument("--remote-python", metavar="FILE", help="Python on the hosts (default: the path of this one)")
    group.add_argument("--remote-dir", metavar="DIR", help="where it runs on the hosts (default: this directory)")
    group.add_argument(
        "-x",
        "--env",
        action="append",
        default=[],
        dest="variables",
        metavar="NAME[=VALUE]",
        help="a variable for the workers: as it is here, or with this value; may be given often",
    )
    return parser


def take_host_options(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return what of the words in front of the program is said here, and the launcher's, in order.

    Raises ValueError for options that need ``--hostfile`` and stand alone.
    """
    at = words.index("--") if "--" in words else len(words)
    parser = host_options()
    asked, others = parser.parse_known_args(list(words[:at]))
    alone = [name for name, value in vars(asked).items() if value and name != "hostfile"]
    if asked.hostfile is None and alone:
        option = {"variables": "-x"}.get(alone[0], f"--{alone[0].replace('_', '-')}")
        raise ValueError(f"{option} is for several hosts: it needs --hostfile FILE")
    return asked, [*others, *words[at:]]


def run(asked: argparse.Namespace, line: LaunchLine) -> int:
    """Run the training on the hosts, and return the launcher's exit status. Raises ValueError."""
    return run_agents(job_of(asked, line, os.environ), tell)


def job_of(asked: argparse.Namespace, line: LaunchLine, environ: Mapping[str, str]) -> HostfileJob:
    """Return what the line asks for. Raises ValueError (a HostfileError for the file)."""
    options = _launcher_options(line)
    hosts = _hosts(asked.hostfile)
    least = re.match(r"\d+", options.nnodes.strip())
    if least is not None and int(least[0]) > len(hosts):
        raise ValueError(
            f"--nnodes {options.nnodes} needs at least {least[0]} hosts, and the hostfile names {len(hosts)}"
        )
    ssh = shlex.split(SSH if asked.ssh is None else asked.ssh)
    if not ssh:
        raise ValueError("--ssh: expected a command, such as 'ssh -F FILE'")
    if asked.port is not None and not 0 < asked.port < 65536:
        raise ValueError(f"--port {asked.port}: expected 1 to 65535")
    if asked.tag is not None and not asked.tag.strip():
        raise ValueError("--tag: expected a name")
    token = environ.get(TOKEN_VARIABLE) or secrets.token_hex(16)
    check_token(token, TOKEN_VARIABLE)
    if warning := weakness_of(token):
        tell(warning)
    return HostfileJob(
        hosts=hosts,
        tag=asked.tag or f"train-{secrets.token_hex(4)}",
        options=line.options,
        program=line.program,
        nnodes=f"1:{len(hosts)}" if options.nnodes == ANY_NUMBER else options.nnodes,
        port=asked.port or FIRST_PORT + secrets.randbelow(NUM_PORTS),
        directory=asked.remote_dir or os.getcwd(),
        python=asked.remote_python or sys.executable,
        ssh=tuple(ssh),
        here=_those_here(hosts, has_own_ssh=asked.ssh is not None),
        variables={
            **_forwarded(environ),
            **line.variables,
            **variables_of(asked.variables, environ),
            TOKEN_VARIABLE: token,
        },
        rdzv_conf=options.rdzv_conf,
        end_s=float(getattr(options, "shutdown_timeout", None) or DEFAULT_SHUTDOWN_S) + AFTER_WORKERS_S,
    )


def _hosts(path: str) -> tuple[HostLine, ...]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ValueError(f"--hostfile {path}: {reason}") from error
    return parse_hostfile(text, path)


def _launcher_options(line: LaunchLine) -> argparse.Namespace:
    """Return what the launchers will make of the line. Raises ValueError for what they would not take."""
    from ..elastic.launch.parser import run_parser  # which needs torch

    parser = run_parser(TRAIN)
    said = parser.parse_args([*line.options, *line.program])
    for word in line.options:
        action = parser._option_string_actions.get(word.partition("=")[0])
        if action is not None and action.dest in HERE_SAID:
            raise ValueError(f"{word.partition('=')[0]} and --hostfile exclude each other: {HERE_SAID[action.dest]}")
    return said


def _those_here(hosts: Sequence[HostLine], *, has_own_ssh: bool) -> frozenset[int]:
    """Return which hosts are this one. Raises ValueError if other hosts could not reach it by that name.

    A host with a port is a container's sshd, or this user's own one, so that is asked; so is a command of the user's.
    """
    if has_own_ssh:
        return frozenset()
    here = frozenset(at for at, host in enumerate(hosts) if host.port is None and is_this_host(host.name))
    if hosts[0].is_only_for_itself and len(here) < len(hosts):
        raise ValueError(
            f"{hosts[0].name}: the other hosts cannot meet there by that name: give the one that they know it by"
        )
    return here


def _forwarded(environ: Mapping[str, str]) -> dict[str, str]:
    stands_for = {f"PET_{name.upper()}" for name in HERE_SAID}
    return {name: value for name, value in environ.items() if name.startswith(FORWARDED) and name not in stands_for}


def tell(what: str) -> None:
    print(f"{TRAIN}: {what}", file=sys.stderr, flush=True)
