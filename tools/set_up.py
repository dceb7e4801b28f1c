"""Set up a virtual environment for this checkout: say what is done, how long it takes, and what is missing then.

    python3 tools/set_up.py .venv
    python3 tools/set_up.py .venv-torch-2.14.1 --torch 2.14.1
    python3 tools/set_up.py .venv --extra docs            # more packages for an environment that is set up

Needs nothing but Python. What pip prints goes to ``set-up.log`` and ``compile.log`` in the environment; a step
that fails shows its end.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
EXTRAS = ("demo", "dev", "serving")
TORCH_AND_ITS_OWN = re.compile(r"(torch|triton|nvidia-|cuda-)")
REQUIREMENTS_OF = """
import sys
try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where mypy brings the same
    import tomli as tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
needs = {"multiworld": project["dependencies"], **project["optional-dependencies"]}
def show(extra):
    for each in needs[extra]:
        if each.startswith("multiworld["):
            show(each.removeprefix("multiworld[").removesuffix("]"))
        else:
            print(each)
for extra in sys.argv[1:]:
    show(extra)
"""
SLOWER = """
import sklearn.datasets, torch.distributed  # now and once, not in each of the processes that begin together
from multiworld import native
if native.core is None:
    print(f"no native core ({native.why_not}): large tensors move more slowly between processes of one host")
if native.for_remote is None:
    print(f"no native remote operations ({native.why_not_for_remote}): each operation of remote tensors takes longer")
if native.not_compiled:
    print(f"no compiled modules ({native.not_compiled}): each message takes longer")
"""


class SetUpError(Exception):
    """A step failed; the text says which, and what it printed last."""


class Steps:
    """Runs commands one after the other, each with a line that says what it does and how long it took."""

    def __init__(self, log: Path, *, shows_progress: bool = True) -> None:
        self._log = log
        self._overwrites = sys.stderr.isatty()
        self._shows_progress = shows_progress

    def run(self, what: str, command: Sequence[str | Path], **environment: str) -> str:
        """Run one step. Return what it printed; raise ``SetUpError`` where it failed."""
        began = time.monotonic()
        if not self._overwrites:
            print(f"  {what} ...", file=sys.stderr, flush=True)
        with self._log.open("ab") as log:
            start = log.tell()
            environ = {name: value for name, value in os.environ.items() if name != "MULTIWORLD_NATIVE"}
            words = list(map(str, command))
            with subprocess.Popen(words, stdout=log, stderr=log, cwd=ROOT, env=environ | environment) as process:
                while not self._has_ended(process):
                    if self._shows_progress:
                        self._show(f"  {what}: {time.monotonic() - began:.0f} s{self._detail(start)}")
        printed = self._printed(start)
        self._show("")
        if process.returncode != 0:
            last = "\n".join(f"    {line}" for line in printed.splitlines()[-15:])
            raise SetUpError(f"{what}: failed with status {process.returncode}:\n{last}\n  All of it: {self._log}")
        print(f"  {what}: done in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        return printed

    @staticmethod
    def _has_ended(process: subprocess.Popen[bytes]) -> bool:
        try:
            process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _printed(self, start: int) -> str:
        with self._log.open("rb") as log:
            log.seek(start)
            return log.read().decode(errors="replace")

    def _detail(self, start: int) -> str:
        """Return what pip is at, as far as it says: a download with its size, or the installation."""
        found = re.findall(
            r"^\s*(Downloading \S+ \(.*?\)|Installing collected packages|Building wheels?)", self._printed(start), re.M
        )
        return f", {found[-1]}" if found else ""

    def _show(self, line: str) -> None:
        if self._overwrites:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{line[:width]}", end="", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Set up a virtual environment for this checkout.")
    parser.add_argument("folder", type=Path, help="the environment")
    parser.add_argument("--torch", help="a release of PyTorch other than the pinned one")
    parser.add_argument("--extra", help="only install what this extra of pyproject.toml needs besides")
    options = parser.parse_args()
    folder: Path = options.folder.absolute()
    try:
        if options.extra is not None:
            add(folder, options.extra)
        else:
            set_up(folder, options.torch)
    except SetUpError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\nerror: interrupted; {folder.name} is not complete, the same command goes on", file=sys.stderr)
        return 130
    return 0


def set_up(folder: Path, torch: str | None) -> None:
    python, version = folder / "bin/python", ".".join(map(str, sys.version_info[:3]))
    works = python.exists() and subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0
    if works:
        print(f"bringing {folder.name} up to date", file=sys.stderr)
    else:
        print(
            f"setting up {folder.name} with Python {version}: 3 to 6 minutes the first time, most of them for PyTorch "
            f"({torch or 'the pinned release'}; 0.2 GB to download, 3 GB where pip takes a build with CUDA)",
            file=sys.stderr,
            flush=True,
        )
        make_environment(folder)
    steps = Steps(folder / "set-up.log")
    pip = pip_install(folder, torch)
    steps.run("installing the build tools", [*pip, "mypy", "setuptools"])
    requirements = requirements_of(python, "multiworld", *EXTRAS)
    compiling = Steps(folder / "compile.log", shows_progress=False)
    with ThreadPoolExecutor(1) as pool:  # installing takes one processor
        editable = [*pip, "--no-build-isolation", "--no-deps", "-e", "."]
        compiled = pool.submit(compiling.run, "compiling (one to two minutes on 2 cores)", editable)
        steps.run("installing PyTorch and the other packages", [*pip, *requirements])
        compiled.result()
    steps.run("writing bytecode", bytecode(python))
    slower = steps.run("looking at the result", [python, "-c", SLOWER]).strip()
    for line in slower.splitlines():
        print(f"  note: {line}", file=sys.stderr)
    if slower:
        print(
            "  Everything works without. To have it, install a C compiler and Python's headers (on Debian: apt-get "
            "install gcc python3-dev), then: make clean setup",
            file=sys.stderr,
        )


def add(folder: Path, extra: str) -> None:
    """Install what one extra names; nothing of this package is built again."""
    python = folder / "bin/python"
    steps = Steps(folder / "set-up.log")
    names = requirements_of(python, extra)
    steps.run(f"installing what the extra {extra} needs", [*pip_install(folder, None), *names])


def bytecode(python: Path) -> list[str]:
    """Return the command that does for our sources, which stay where they are, what pip does for a package."""
    return [str(python), "-m", "compileall", "-q", "-j", "0", "src"]


def requirements_of(python: Path, *extras: str) -> list[str]:
    """Return what some extras of ``pyproject.toml`` need; ``multiworld`` stands for what is always needed."""
    command = [str(python), "-c", REQUIREMENTS_OF, *extras]
    names = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if names.returncode != 0 or not names.stdout.split():
        raise SetUpError(f"pyproject.toml has no extra {' or '.join(map(repr, extras))}: {names.stderr.strip()[-300:]}")
    return list(names.stdout.splitlines())


def pip_install(folder: Path, torch: str | None) -> list[str]:
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    return [*pip, "-c", str(constraints(folder, torch))]  # with bytecode: processes may be forbidden to write any


def make_environment(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    made = subprocess.run([sys.executable, "-m", "venv", folder], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        shutil.rmtree(folder, ignore_errors=True)
        raise SetUpError(
            f"{sys.executable} cannot make a virtual environment (on Debian: apt-get install python3-venv): "
            f"{(made.stdout + made.stderr).strip()[-300:]}"
        )


def constraints(folder: Path, torch: str | None) -> Path:
    """Return the file of pinned versions; for another PyTorch, one without the pins of what each PyTorch brings."""
    if torch is None:
        return CONSTRAINTS
    lines = CONSTRAINTS.read_text().splitlines()
    kept = [line for line in lines if not TORCH_AND_ITS_OWN.match(line)]
    path = folder / "constraints.txt"
    path.write_text("\n".join([*kept, f"torch=={torch}", ""]))
    return path


if __name__ == "__main__":
    sys.exit(main())
