"""``python -m multiworld.serving.hosts``: a host process that serves the controller of a deployment on another host."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence

from ...command_parser import CommandParser
from ...process.interruption import end_on_signals
from ...wire.endpoints.token import TOKEN_VARIABLE, check_token, weakness_of
from ..graces import GRACE_S
from .options import HostOptions


def main(arguments: Sequence[str] | None = None, prog: str = "python -m multiworld.serving.hosts") -> int:
    parser = command_parser(prog)
    options = parser.parse_args(arguments)
    address, _, port = options.controller.rpartition(":")
    if not address or not port.isdecimal():
        parser.error(f"expected HOST:PORT, got {options.controller!r}")
    try:
        token = check_token(os.environ.get(TOKEN_VARIABLE, ""))
        host = HostOptions(
            address=(address.strip("[]"), int(port)),
            token=token,
            name=options.name,
            own_address=options.address,
            preload=tuple(options.preload),
            log_dir=options.log_dir,
            grace_s=options.grace,
        )
    except ValueError as error:
        parser.error(str(error))
    if warning := weakness_of(token):
        sys.stderr.write(f"{parser.prog}: {warning}\n")
    from .program import run_host  # what makes no sense is told without PyTorch, which takes seconds

    return run_host(host)


def command_parser(prog: str) -> CommandParser:
    parser = CommandParser(
        prog=prog, description="Start replicas on this host for a pipeline that is served on another."
    )
    parser.add_argument("controller", help="HOST:PORT at which the controller listens")
    parser.add_argument("--name", default=socket.gethostname(), help="of this host; stages may be bound to it")
    parser.add_argument("--address", default="", help="at which others reach this host; by default as it shows itself")
    parser.add_argument("--preload", action="append", default=[], metavar="MODULE", help="import it before any fork")
    parser.add_argument("--log-dir", default="", help="a folder for one log file per member")
    parser.add_argument("--grace", type=float, default=GRACE_S, metavar="SECONDS", help="that members have to finish")
    parser.epilog = f"The token of the deployment is taken from the environment: {TOKEN_VARIABLE}."
    return parser


if __name__ == "__main__":
    end_on_signals("python -m multiworld.serving.hosts")
    sys.exit(main())
