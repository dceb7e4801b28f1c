"""Run the tests that start processes, stage by stage; in CI, a few that failed run once more, alone.

``python -m tests.stages [PYTEST ARGUMENTS]`` runs all stages, also after one has failed. With CI set to a true value,
at most ``MAX_FLAKY`` failed tests run again, each alone in a pytest of its own: CI machines are shared and noisy. A
test that passes then is printed as *flaky*. More failures than that, or a stage that did not end by itself, get no
second run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_FLAKY = 3
FOLDERS = ("tests/examples", "tests/process", "tests/hosts", "tests/gpu")  # those that take longest begin first
MARKED_FOLDER = "tests/gpu"  # whose tests are marked for being there
PASSED, TESTS_FAILED, NOTHING_COLLECTED = 0, 1, 5  # of pytest's exit statuses
CACHES = Path(".pytest_cache/stages")

Call = Callable[[Sequence[str], Mapping[str, str]], int]


@dataclass(frozen=True, kw_only=True)
class Stage:
    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    mark: str = ""
    """The mark of all its tests: other files than those that name it are not imported."""


STAGES = (
    Stage(
        name="beside",
        arguments=("-n", "2", "--dist", "loadscope", "--no-loadscope-reorder", "-m", "not alone and not sources"),
        environment={},
    ),
    Stage(name="alone", arguments=("-m", "alone and not sources"), environment={}, mark="alone"),
    Stage(name="sources", arguments=("-m", "sources"), environment={"MULTIWORLD_NATIVE": "core"}, mark="sources"),
)
"""Those that keep bounds on time run one after the other; those that reach into modules run on the sources.

xdist would begin with the modules of the most tests; the few of the benchmarks, which take longest, would run last,
with nothing beside them. Three at a time on two processors take longer, and some then miss their time limits.
"""


@dataclass(frozen=True)
class Failed:
    stage: Stage
    test: str


def run_stages(stages: Sequence[Stage], chosen: Sequence[str], call: Call, *, in_ci: bool) -> int:
    """Return the exit status: 0 if every test passed, in CI also if each of a few passed in its second run.

    ``chosen`` are pytest's further arguments, as ``-k``: a stage of which they choose nothing passes.
    """
    failed: list[Failed] = []
    for stage in stages:
        status = call([*stage.arguments, *_places(stage), *_cache(stage), *chosen], stage.environment)
        if status == TESTS_FAILED:
            failed += [Failed(stage, test) for test in _last_failed(stage)]
        if status not in (PASSED, TESTS_FAILED) and not (status == NOTHING_COLLECTED and chosen):
            return status
        if status == TESTS_FAILED and not _last_failed(stage):
            return status  # it failed as a whole, as when an error came between tests
    if not failed:
        return PASSED
    if not in_ci or len(failed) > MAX_FLAKY or any(_is_no_single_test(each) for each in failed):
        return TESTS_FAILED
    return _run_again(failed, call)


def _run_again(failed: Sequence[Failed], call: Call) -> int:
    still = [each for each in failed if call([each.test], each.stage.environment) != PASSED]
    for each in failed:
        print(f"{'failed twice' if each in still else 'flaky'}: {each.test}", flush=True)
    return TESTS_FAILED if still else PASSED


def _is_no_single_test(failed: Failed) -> bool:
    return "::" not in failed.test  # a file that cannot be imported


def _places(stage: Stage) -> list[str]:
    """Return the folders and files in which pytest looks for the tests of a stage."""
    if not stage.mark:
        return list(FOLDERS)
    return [*_files_with(stage.mark), MARKED_FOLDER]


def _files_with(mark: str) -> list[str]:
    files = (path for folder in FOLDERS if folder != MARKED_FOLDER for path in sorted(Path(folder).rglob("test_*.py")))
    return [str(path) for path in files if names_mark(path, mark)]


def names_mark(path: Path, mark: str) -> bool:
    return f"mark.{mark}" in path.read_text()


def _cache(stage: Stage) -> list[str]:
    return ["--override-ini", f"cache_dir={CACHES / stage.name}"]


def _last_failed(stage: Stage) -> list[str]:
    try:
        return list(json.loads((CACHES / stage.name / "v/cache/lastfailed").read_bytes()))
    except FileNotFoundError:
        return []


def pytest(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run pytest in a process of its own; return its exit status."""
    words = " ".join([*(f"{name}={value}" for name, value in environment.items()), "pytest", *arguments])
    print(words, flush=True)
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, check=False).returncode


def main() -> int:
    shutil.rmtree(CACHES, ignore_errors=True)
    in_ci = os.environ.get("CI", "false").lower() not in ("", "0", "false")
    return run_stages(STAGES, sys.argv[1:], pytest, in_ci=in_ci)


if __name__ == "__main__":
    sys.exit(main())
