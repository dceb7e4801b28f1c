"""A signal at a chosen moment of a command's start ends it: one line, the status that says which, nothing left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from multiworld.testing.deadlines import scaled, wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(scaled(90))]

COMMAND = [sys.executable, str(Path(sys.executable).with_name("multiworld"))]
END_S = 40.0

# Once the command has taken its signals over, it gets one as the module that AT names begins to be imported.
AT_IMPORT = """
import os, signal, sys

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which the tests may have been started to ignore, by nohup

class Finder:
    def find_spec(name, path=None, target=None):
        if name == os.environ["AT"] and Finder in sys.meta_path and callable(signal.getsignal(signal.SIGTERM)):
            sys.meta_path.remove(Finder)
            os.kill(os.getpid(), int(os.environ["SIGNAL"]))

sys.meta_path.insert(0, Finder)
"""
# The first that imports it is the process that draws the pipeline up, the second is to fork the members.
APP = """
import os, pathlib, signal
import multiworld as mw

pipeline = mw.serving.Pipeline([mw.serving.Stage("e", abs)], name="e", preload=["app"])
number, whom = int(os.environ["SIGNAL"]), os.environ["AT"]
first = pathlib.Path(__file__).with_name("imported")
is_first = not first.exists()
first.touch()
try:
    if is_first and whom == "group":
        os.killpg(0, number)
    elif is_first and whom == "parent":
        os.kill(os.getppid(), number)
        signal.pause()
    elif not is_first and whom == "preload":
        os.kill(os.getpid(), number)
except BaseException:
    print("caught")
"""


class Started:
    """What a command leaves of itself: its end, its output, its folders."""

    def __init__(self, folder: Path, command: list[str], at: str, number: signal.Signals) -> None:
        self.places = [folder / "temporary", folder / "run-time"]
        for place in self.places:
            place.mkdir(mode=0o700)
        environment = {
            **os.environ,
            "PYTHONPATH": str(folder),
            "TMPDIR": str(self.places[0]),
            "XDG_RUNTIME_DIR": str(self.places[1]),
            "AT": at,
            "SIGNAL": str(int(number)),
        }
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        try:
            self.out, self.err = (text.decode() for text in self.process.communicate(timeout=scaled(END_S)))
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()
            raise

    @property
    def left(self) -> list[str]:
        """The files that it has left, but for locks."""
        paths = (path for place in self.places for path in place.rglob("*"))
        return [str(path) for path in paths if path.is_file() and path.name != ".lock"]

    @property
    def is_alone(self) -> bool:
        """Whether no process of its session is left."""
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return True
        return False


@pytest.mark.parametrize(
    ("line", "at", "number"),
    [
        (["serve", "app.py:pipeline"], "numpy", signal.SIGTERM),
        (["run", "--standalone", "program.py"], "numpy", signal.SIGTERM),
        (["exec", "-n", "2", "true"], "numpy", signal.SIGINT),
        (["doctor"], "numpy", signal.SIGHUP),
        (["bench", "p2p"], "multiworld.bench.p2p", signal.SIGINT),
        (["demo"], "multiworld.demo.run", signal.SIGTERM),
        (["status"], "multiworld.elastic.control.client", signal.SIGINT),
        (["manifest", "k8s"], "argparse", signal.SIGTERM),
    ],
)
def test_ends_at_once_while_it_imports(line: list[str], at: str, number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(AT_IMPORT)
    (tmp_path / "app.py").write_text(APP)
    started = Started(tmp_path, [*COMMAND, *line], at, number)
    assert started.process.returncode == 128 + number, started.err
    name = "multiworld" if at == "argparse" else f"multiworld {line[0]}"
    said = "loading PyTorch\n" if line[0] == "demo" else ""
    assert (started.out, started.err) == ("", f"{said}{name}: ended by {number.name}\n")
    assert not started.left


@pytest.mark.parametrize(
    ("at", "number"),
    [("group", signal.SIGINT), ("parent", signal.SIGTERM), ("preload", signal.SIGTERM)],
)
def test_serve_ends_with_the_process_that_draws_up_whatever_the_users_module_catches(
    at: str, number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(APP)
    started = Started(tmp_path, [*COMMAND, "serve", "app.py:pipeline", "--port", "0"], at, number)
    assert (started.out, started.err) == ("", f"multiworld serve: ended by {number.name}\n")
    assert started.process.returncode == 128 + number
    assert wait_until(lambda: started.is_alone, END_S)
    assert not started.left


def test_a_benchmark_that_is_interrupted_ends_its_workers(tmp_path: Path) -> None:
    line = [*COMMAND, "bench", "p2p", "--quick"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True) as bench:
        assert bench.stderr is not None
        assert bench.stderr.readline().startswith("p2p: ")
        bench.terminate()
        rest = bench.stderr.read()  # to its end: no worker holds it open
    *stages, last = rest.splitlines()
    assert (bench.returncode, last) == (143, "multiworld bench: ended by SIGTERM")
    assert all(each.startswith("p2p: ") for each in stages)  # it may have got further before the signal
    assert not list(tmp_path.iterdir())


def test_a_job_that_a_signal_ends_leaves_no_folder(tmp_path: Path) -> None:
    program = "import os, signal; os.kill(os.getppid(), int(os.environ['SIGNAL'])); signal.pause()"
    (tmp_path / "program.py").write_text(program)
    line = ["run", "--standalone", "--nproc-per-node=2", "program.py"]
    started = Started(tmp_path, [*COMMAND, *line], "", signal.SIGTERM)
    assert started.process.returncode == 143, started.err
    assert started.err.endswith("multiworld run: ended by SIGTERM\n")
    assert not list(started.places[0].iterdir())
