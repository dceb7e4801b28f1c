"""What the commands that plan have in common: which model on which nodes, and how they say what is wrong."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..command_parser import CommandParser
from ..training.errors import TrainingError
from ..training.planning.nodes import Node
from ..training.planning.profile import Profile
from ..training.planning.profile_file import read_profile
from ..training.planning.uniform import uniform_profile

if TYPE_CHECKING:
    from ..training.planning.templates import Templates

BAD_INPUT = 2
GIB = 1 << 30
MIB = 1 << 20
MAX_PROFILE_BYTES = 1 << 26


@dataclass(frozen=True, kw_only=True)
class Planning:
    """``num_micro_batches``: of a step, over all pipelines."""

    profile: Profile
    node: Node
    num_nodes: int
    tolerate: int
    num_micro_batches: int
    schedule: str = "auto"

    def templates(self) -> Templates:
        """Return those of a job with this schedule. Raises PlanError."""
        from ..training.planning.scheduling import scheduled_templates

        return scheduled_templates(
            self.profile, self.node, self.schedule, num_nodes=self.num_nodes, tolerate=self.tolerate
        )

    @property
    def global_batch(self) -> int:
        return self.num_micro_batches * self.profile.micro_batch


def add_planning_options(parser: CommandParser) -> None:
    """Add the model and the nodes."""
    parser.add_argument("profile", metavar="PROFILE", nargs="?", help="file with what each layer of the model costs")
    parser.add_argument("--nodes", type=positive_count, metavar="N", help="how many there are")
    parser.add_argument(
        "--tolerate",
        type=_count,
        metavar="F",
        default=1,
        help="how many nodes may be lost at once, whichever they are, while each layer is left somewhere (default: 1)",
    )
    parser.add_argument("--devices", type=positive_count, metavar="D", default=1, help="of each node (default: 1)")
    parser.add_argument("--memory-gib", type=positive_number, metavar="GIB", help="of each device (default: no limit)")
    parser.add_argument(
        "--global-batch",
        type=positive_count,
        metavar="B",
        help="samples of a step, over all nodes (default: 4 micro-batches for each node)",
    )
    parser.add_argument(
        "--schedule",
        choices=("auto", "1f1b", "zero-bubble"),
        default="auto",
        help="as of job.pipeline(); auto: the faster one for each size (default)",
    )
    parser.add_argument("--micro-batch", type=positive_count, metavar="M", help="samples of a micro-batch (default: 1)")
    parser.add_argument("--layers", type=positive_count, metavar="L", help="instead of PROFILE: so many equal layers")
    parser.add_argument(
        "--layer-ms", type=positive_number, metavar="MS", help="forward of such a layer (default: 10); backward: 2x"
    )
    parser.add_argument("--layer-mib", type=positive_number, metavar="MIB", help="its parameters in fp32 (default: 0)")
    parser.add_argument(
        "--activation-mib", type=positive_number, metavar="MIB", help="what its forward keeps (default: 0)"
    )


def planning_of(options: argparse.Namespace) -> Planning:
    """Return what the options say. Raises ValueError, ProfileFileError, OSError."""
    profile = _profile(options)
    if options.nodes is None:
        raise ValueError("--nodes is missing: how many nodes are there?")
    if options.micro_batch is not None and options.micro_batch != profile.micro_batch:
        raise ValueError(
            f"--micro-batch {options.micro_batch}: {options.profile} was measured with micro-batches of "
            f"{profile.micro_batch}; measure again with the other size, or leave the option out"
        )
    global_batch = options.global_batch or 4 * options.nodes * profile.micro_batch
    if global_batch % profile.micro_batch:
        nearest = max(1, round(global_batch / profile.micro_batch)) * profile.micro_batch
        raise ValueError(
            f"--global-batch {global_batch} is no multiple of the micro-batch, {profile.micro_batch}: take {nearest}"
        )
    memory = None if options.memory_gib is None else int(options.memory_gib * GIB)
    return Planning(
        profile=profile,
        node=Node(devices=options.devices, memory_bytes=memory),
        num_nodes=options.nodes,
        tolerate=options.tolerate,
        num_micro_batches=global_batch // profile.micro_batch,
        schedule=options.schedule,
    )


def _profile(options: argparse.Namespace) -> Profile:
    of_layers = {name: getattr(options, name) for name in ("layer_ms", "layer_mib", "activation_mib")}
    given = [f"--{name.replace('_', '-')}" for name, value in of_layers.items() if value is not None]
    if options.profile is not None and options.layers is not None:
        raise ValueError(f"give either a profile ({options.profile}) or --layers {options.layers}")
    if options.layers is None and given:
        raise ValueError(f"{given[0]} needs --layers: the costs of the layers of a profile stand in its file")
    if options.layers is not None:
        return uniform_profile(
            options.layers,
            micro_batch=options.micro_batch or 1,
            forward_s=(options.layer_ms or 10.0) / 1000,
            layer_bytes=int((options.layer_mib or 0.0) * MIB),
            activation_bytes=int((options.activation_mib or 0.0) * MIB),
        )
    if options.profile is None:
        raise ValueError("which model? Give a profile, or --layers L for L equal layers")
    return read_profile(options.profile, read_text(options.profile, MAX_PROFILE_BYTES)).profile


def read_text(path: str, most_bytes: int) -> str:
    """Return the text of a file. Raises ValueError, which names the file."""
    try:
        size = os.path.getsize(path)
        if size > most_bytes:
            raise ValueError(f"{path} has {size:,} bytes, more than {most_bytes:,}: is this the file?")
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None


def write_picture(path: str, picture: str) -> None:
    """Write a picture, to standard output for ``-``. Raises ValueError, which names the file."""
    if path == "-":
        print(picture, end="")
        return
    try:
        Path(path).write_text(picture, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from None


def told(command: str, work: Callable[[], None]) -> int:
    """Do the work of a command and return its exit status: 0, or 2 with one line about what makes no sense."""
    try:
        work()
    except (TrainingError, ValueError) as error:
        print(f"{command}: {error}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def positive_count(text: str) -> int:
    """Return the whole number in an option, at least 1."""
    return _at_least(text, 1)


def _count(text: str) -> int:
    return _at_least(text, 0)


def _at_least(text: str, least: int) -> int:
    try:
        found = int(text)
    except ValueError:
        found = least - 1
    if found < least:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number, at least {least}")
    return found


def positive_number(text: str) -> float:
    """Return the number in an option, above 0."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0.0 < found < 1e12:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0")
    return found
