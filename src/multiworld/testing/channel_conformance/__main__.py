"""``python -m multiworld.testing.channel_conformance NAME``: examine a channel, and print a line for each check."""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time
import unittest
from collections.abc import Sequence

from ...command_parser import CommandParser
from .catalogue import ConformanceError
from .checks import CHECKS
from .examiner import Examiner
from .subject import Effort, Subject


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if all checks that could be carried out hold, 1 if one does not, 2 for wrong arguments."""
    parser = _parser()
    options = parser.parse_args(arguments)
    names = [name for name in CHECKS if _is_chosen(name, options.only)]
    if options.list:
        _print(*(f"{name}\n    {CHECKS[name].promise}" for name in names))
        return 0
    if options.backend is None:
        parser.error("NAME is missing: the channel to examine")
    if not names:
        parser.error(f"no check is called {' or '.join(options.only)}; --list shows them all")
    try:
        subject, effort = _subject(options), _effort(options)
        subject.channel()
    except (TypeError, ValueError) as error:
        parser.error(str(error))
    if reason := subject.why_not():
        parser.error(f"{subject.backend} does not work here: {reason}")
    return _examine(subject, effort, names)


def _examine(subject: Subject, effort: Effort, names: Sequence[str]) -> int:
    counts = {"holds": 0, "BROKEN": 0, "skipped": 0}
    began = time.monotonic()
    with Examiner(subject, effort) as examiner:
        for name in names:
            check_began = time.monotonic()
            verdict, reason = _verdict(examiner, name)
            counts[verdict] += 1
            _print(f"{verdict:8} {time.monotonic() - check_began:6.1f} s  {name}", *reason.splitlines())
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    _print(f"{subject.backend}: {summary}, {time.monotonic() - began:.1f} s, seed {effort.seed}")
    return 1 if counts["BROKEN"] else 0


def _verdict(examiner: Examiner, name: str) -> tuple[str, str]:
    try:
        examiner.run(name)
    except unittest.SkipTest as skipped:
        return "skipped", f"    {skipped}"
    except ConformanceError as error:
        return "BROKEN", "".join(f"    {line}\n" for line in str(error).splitlines())
    return "holds", ""


def _parser() -> argparse.ArgumentParser:
    defaults, effort = Subject(""), Effort()
    parser = CommandParser(
        prog="python -m multiworld.testing.channel_conformance",
        description="Examine a data channel: does it keep every promise that multiworld makes for it?",
    )
    parser.add_argument("backend", metavar="NAME", nargs="?", help="an installed channel, or package.module:Class")
    parser.add_argument("--only", metavar="CHECK", action="append", default=[], help="a check's name, or a pattern")
    parser.add_argument("--skip", metavar="CHECK=REASON", action="append", default=[], help="leave a check out")
    parser.add_argument("--list", action="store_true", help="say which checks there are")
    parser.add_argument("--device", default=defaults.device, help='of the tensors; "cuda:{member}" gives each its own')
    sizes = ",".join(map(str, defaults.world_sizes))
    parser.add_argument("--world-sizes", default=sizes, help=f"sizes of worlds to try (default {sizes})")
    parser.add_argument("--seed", type=int, default=effort.seed, help=f"default {effort.seed}")
    parser.add_argument(
        "--kills",
        type=int,
        default=effort.num_kills,
        help=f"how often to kill amid operations (default {effort.num_kills})",
    )
    moments = f"how often to give up at a random moment (default {effort.num_moments})"
    parser.add_argument("--moments", type=int, default=effort.num_moments, help=moments)
    timeout = f"seconds after which a check hangs (default {effort.check_timeout_s:g})"
    parser.add_argument("--check-timeout", type=float, default=effort.check_timeout_s, help=timeout)
    return parser


def _subject(options: argparse.Namespace) -> Subject:
    skip = dict(item.partition("=")[::2] for item in options.skip)
    if unknown := [name for name in skip if name not in CHECKS]:
        raise ValueError(f"--skip: there is no check {unknown[0]!r}; --list shows them all")
    try:
        sizes = tuple(int(size) for size in options.world_sizes.split(","))
    except ValueError:
        raise ValueError(f"--world-sizes is {options.world_sizes!r}; expected numbers, as in 2,3") from None
    return Subject(options.backend, device=options.device, world_sizes=sizes, skip=skip)


def _effort(options: argparse.Namespace) -> Effort:
    return Effort(
        seed=options.seed, num_kills=options.kills, num_moments=options.moments, check_timeout_s=options.check_timeout
    )


def _is_chosen(name: str, only: Sequence[str]) -> bool:
    return not only or any(fnmatch.fnmatchcase(name, pattern) for pattern in only)


def _print(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
