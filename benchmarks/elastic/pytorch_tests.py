"""Run PyTorch's own launcher tests against torchrun and against us; exits with 1 if one passes there and fails here.

    python -m benchmarks.elastic.pytorch_tests PYTORCH/test/distributed/launcher

The folder is of a checkout of PyTorch; its tests are in no wheel. They need ``expecttest`` and ``pytest``.
"""

from __future__ import annotations

import argparse
import ast
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FAILED", "NOT_LOADED", "OURS", "PASSED", "SKIPPED", "TORCHRUN"]

FILES = ("test_run.py", "launch_test.py")
SIDES = TORCHRUN, OURS = ("torchrun", "ours")
PASSED, FAILED, SKIPPED, NOT_LOADED = 0, 1, 77, 78  # exit statuses of one test's process
WORDS = {PASSED: "passed", FAILED: "failed", SKIPPED: "skipped"}
OTHER = "–"
LAST_LINES = 25
NOT_ABOUT_A_LAUNCHER = {
    "test_launch_elastic_agent_raise_exception": "patches LocalElasticAgent.run, which no other launcher has",
    "test_launch_shutdown": "patches LocalElasticAgent, and looks at torch's rendezvous handler",
    "test_min_max_nodes_parse": "calls torch's parse_min_max_nnodes, and launches nothing",
    "test_is_not_torchelastic_launched": "runs a script without any launcher",
}
"""Tests that say nothing about the behaviour of another launcher than torchrun, and why."""


@dataclass(frozen=True)
class Case:
    """One test, and how it ended on each side: ``passed``, ``failed`` or ``skipped``."""

    name: str
    ends: dict[str, str]

    @property
    def is_worse(self) -> bool:
        """Whether it passes there, and does not here."""
        return self.ends[TORCHRUN] == WORDS[PASSED] and self.ends[OURS] not in (WORDS[PASSED], OTHER)


class NotLoadedError(Exception):
    """The tests cannot be imported here, so they show nothing."""


def main() -> int:
    options = _arguments()
    cases = [
        _case(path, name, options.timeout_s)
        for path in (options.folder / file for file in FILES)
        for name in test_names(path.read_text())
        if options.only is None or options.only in name
    ]
    if not cases:
        print("there is no such test", file=sys.stderr)
        return 2
    print(f"\n{table(cases)}\n\n{verdict(cases)}")
    return 1 if any(case.is_worse for case in cases) else 0


def test_names(source: str) -> Iterator[str]:
    """Yield ``Class.method`` of all tests in a file, in its order."""
    for group in ast.parse(source).body:
        if isinstance(group, ast.ClassDef):
            for method in group.body:
                if isinstance(method, ast.FunctionDef) and method.name.startswith("test"):
                    yield f"{group.name}.{method.name}"


def table(cases: list[Case]) -> str:
    """Return a line for each test, in Markdown."""
    rows = [("test", *SIDES, ""), *((_short(case.name), *case.ends.values(), _remark(case)) for case in cases)]
    widths = [max(3, *(len(row[column]) for row in rows)) for column in range(4)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def verdict(cases: list[Case]) -> str:
    """Return the sum in words."""
    counted = [case for case in cases if case.ends[OURS] != OTHER]
    there = [case for case in counted if case.ends[TORCHRUN] == WORDS[PASSED]]
    worse = sum(case.is_worse for case in cases)
    return (
        f"{len(cases)} tests, {len(cases) - len(counted)} of them not about a launcher's behaviour. "
        f"Of the others {len(there)} pass against torchrun, and {len(there) - worse} of these against us."
    )


def _case(path: Path, name: str, timeout_s: float) -> Case:
    is_other = _short(name) in NOT_ABOUT_A_LAUNCHER
    ends = {side: OTHER if is_other and side == OURS else _run(side, path, name, timeout_s) for side in SIDES}
    return Case(name, ends)


def _run(side: str, path: Path, name: str, timeout_s: float) -> str:
    """Run one test in a process of its own; show the end of its output if it failed."""
    began = time.monotonic()
    command: list[str | Path] = [sys.executable, "-m", "benchmarks.elastic.one_pytorch_test", side, path, name]
    with tempfile.TemporaryFile() as file:  # no pipe, which a worker that was left behind would hold open
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        file.seek(0)
        output = file.read().decode(errors="replace")
    if process.returncode == NOT_LOADED:
        raise NotLoadedError(output)
    end = WORDS.get(process.returncode, WORDS[FAILED])
    print(f"{_short(name)}, {side}: {end} ({time.monotonic() - began:.1f} s)", flush=True)
    if end == WORDS[FAILED]:
        print("".join(f"    {line}\n" for line in output.splitlines()[-LAST_LINES:]), flush=True)
    return end


def _short(name: str) -> str:
    return name.partition(".")[2]


def _remark(case: Case) -> str:
    reason = NOT_ABOUT_A_LAUNCHER.get(_short(case.name))
    return f"not about a launcher's behaviour: {reason}" if reason else "WORSE" if case.is_worse else ""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.elastic.pytorch_tests", description=__doc__)
    parser.add_argument("folder", type=Path, help="test/distributed/launcher of a checkout of PyTorch")
    parser.add_argument("--only", metavar="NAME", help="tests whose names contain this")
    parser.add_argument("--timeout-s", type=float, default=120.0, help="for each test on each side (default 120)")
    options = parser.parse_args()
    missing = [name for name in FILES if not (options.folder / name).is_file()]
    if missing:
        parser.error(f"{options.folder} has no {', '.join(missing)}")
    return options


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NotLoadedError as error:
        sys.exit(f"{error}pip install expecttest pytest; and take the tests of the installed version of PyTorch")
