"""Workers that a fork server starts are like any other program, and never outlive their agent."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import pytest

from multiworld.process.spawn import seqpacket
from multiworld.process.spawn.entrypoint import EntrypointKind
from multiworld.process.spawn.fork_server import ForkServer
from multiworld.testing import scaled, wait_until
from multiworld.world.processes.procfs import RUNNING, process_start_time, process_state

from .fork_server_agent import WAIT_S, Agent, Started

pytestmark = pytest.mark.cold

SCRIPT, MODULE, COMMAND = EntrypointKind.SCRIPT, EntrypointKind.MODULE, EntrypointKind.COMMAND
FUNCTION = EntrypointKind.FUNCTION
GONE_S = 1.0

FACTS = """
    import gc, json, os, signal, sys, threading
    main = sys.modules["__main__"]
    streams = [(sys.stdin, sys.__stdin__), (sys.stdout, sys.__stdout__), (sys.stderr, sys.__stderr__)]
    facts = {
        "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "cwd": os.getcwd(), "env": dict(os.environ),
        "main": [main.__dict__ is globals(), sys.modules.get("__mp_main__", main) is main, __name__, __file__,
                 repr(__builtins__), type(__loader__).__name__, __package__, getattr(__spec__, "name", None),
                 sorted(name for name in globals() if name[:2] == "__")],
        "handlers": [(number, str(signal.getsignal(number))) for number in signal.valid_signals()],
        "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "descriptors": [name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")],
        "stdin": sys.stdin.read(),
        "streams": [
            [stream is original, stream.encoding, stream.errors, stream.write_through, stream.line_buffering,
             type(stream.buffer).__name__, stream.name, stream.mode, stream.fileno(), stream.isatty()]
            for stream, original in streams
        ],
        "hooks": [sys.excepthook is sys.__excepthook__, threading.excepthook is threading.__excepthook__],
        "gc": [gc.isenabled(), gc.get_threshold()],
        "threads": [thread.name for thread in threading.enumerate()],
    }
    print(json.dumps(facts))
"""
ENDINGS = {
    "return": "print('done')",
    "none": "import sys; sys.exit(None)",
    "status": "import sys; sys.exit(3)",
    "large": "import sys; sys.exit(259)",
    "negative": "import sys; sys.exit(-1)",
    "text": "import sys; sys.exit('a reason')",
    "error": "def work():\n    raise ValueError('wrong')\nwork()",
    "chain": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('x') from error",
    "syntax": "print('never')\nnot python",
    "import": "import a_module_that_nobody_has",
    "interrupt": "import atexit\natexit.register(print, 'ended')\nraise KeyboardInterrupt",
    "interrupted": "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(10)",
    "signal": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
    "hook": "import sys\nsys.excepthook = lambda *error: sys.exit(7)\nraise ValueError",
    "bad-hook": "import sys\nsys.excepthook = None\nraise ValueError('first')",
    "c": "import ctypes, os\nctypes.CDLL(None).puts(b'from C')\nos._exit(0)",
    "exit": "import os\nos._exit(4)",
    "unflushed": "file = open('unflushed.txt', 'w')\nfile.write('kept')",
    "held": "def work():\n    file = open('held.txt', 'w')\n    file.write('kept')\n    raise ValueError\nwork()",
    "atexit": "import atexit, sys\natexit.register(print, 'last words')\nsys.exit(2)",
    "thread": (
        "import threading, time\ndef work():\n    main.join()\n    print('later')\n"
        "main = threading.main_thread()\nthreading.Thread(target=work).start()"
    ),
    "logging": "import logging\nlogging.warning('plain')\nlogging.getLogger('multiworld').warning('ours')",
    "spawn": (
        "import multiprocessing\ndef work(queue):\n    queue.put(__name__)\n"
        "if __name__ == '__main__':\n    context = multiprocessing.get_context('spawn')\n"
        "    queue = context.SimpleQueue()\n    child = context.Process(target=work, args=(queue,))\n"
        "    child.start()\n    print(queue.get())\n    child.join()\n    print(child.exitcode)"
    ),
}
READ_LINE = "import sys; print(sys.stdin.readline(), end='')"
SLEEPER = "import subprocess; print(subprocess.Popen(['sleep', '1000']).pid); import time; time.sleep(1000)"


FUNCTIONS = """
    import atexit, json, os, sys, threading
    taken = []
    def take(descriptor):
        taken.append(os.read(descriptor, 100).decode())
        os.close(descriptor)
    def show(told):
        descriptors = [name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]
        print(json.dumps([told, taken, sys.argv, sys.path[0], os.getcwd(), sorted(descriptors)]))
        atexit.register(print, "last words")
        threading.Thread(target=print, args=("from a thread",)).start()
        sys.exit(5)
    def fail(told):
        raise LookupError("no such thing")
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[Agent]:
    agent = Agent()
    yield agent
    agent.close()


@pytest.fixture
def agent(shared: Agent) -> Iterator[Agent]:
    yield shared
    shared.close_workers()


@pytest.fixture
def cold() -> Iterator[Agent]:
    agent = Agent(warm=False)
    yield agent
    agent.close()


def write(folder: Path, name: str, program: str) -> str:
    path = folder / name
    path.write_text(textwrap.dedent(program))
    return str(path)


def run_plainly(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-u", *arguments]
    env = dict(os.environ)  # a library may have set more than Python knows of
    return subprocess.run(
        command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def outcome(worker: Started) -> tuple[int, str, str]:
    returncode = worker.wait()
    return returncode, worker.stdout(), worker.stderr()


@pytest.mark.parametrize("warm", [True, False])
def test_a_worker_ignores_the_signals_that_its_agent_was_started_to_ignore(warm: bool, tmp_path: Path) -> None:
    ignored = (signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1)  # the first two in what a script starts in the background
    program = f"import signal; print([str(signal.getsignal(each)) for each in {tuple(map(int, ignored))}])"
    before = {signum: signal.signal(signum, signal.SIG_IGN) for signum in ignored}
    try:
        plain = run_plainly(tmp_path, "-c", program).stdout
        agent = Agent(warm=warm)
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    try:
        worker = agent.spawn(SCRIPT, write(tmp_path, "program.py", program), warm=warm)
        assert worker.stdout() == plain == f"{[str(signal.SIG_IGN)] * len(ignored)}\n"
    finally:
        agent.close()


def test_a_warm_script_sees_what_it_sees_in_an_interpreter_of_its_own(agent: Agent, tmp_path: Path) -> None:
    write(tmp_path, "facts.py", FACTS)
    worker = agent.spawn(SCRIPT, "facts.py", "a", "b c", cwd=str(tmp_path))
    plain = run_plainly(tmp_path, "facts.py", "a", "b c")
    assert json.loads(worker.stdout()) == json.loads(plain.stdout)
    assert worker.wait() == 0


def test_a_warm_module_sees_what_it_sees_in_an_interpreter_of_its_own(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    write(tmp_path, "package/__init__.py", "")
    write(tmp_path, "package/__main__.py", FACTS)
    worker = agent.spawn(MODULE, "package", "a", cwd=str(tmp_path))
    plain = run_plainly(tmp_path, "-m", "package", "a")
    assert json.loads(worker.stdout()) == json.loads(plain.stdout)


def test_programs_end_as_in_interpreters_of_their_own(agent: Agent, tmp_path: Path) -> None:
    for name, program in ENDINGS.items():
        write(tmp_path, f"that_{name}.py", program)
    names = [*ENDINGS, "missing"]
    for folder in ("warm", "plain"):
        (tmp_path / folder).mkdir()
    workers = {name: agent.spawn(SCRIPT, f"../that_{name}.py", cwd=str(tmp_path / "warm")) for name in names}
    results = {name: outcome(worker) for name, worker in workers.items()}
    for name in names:
        plain = run_plainly(tmp_path / "plain", f"../that_{name}.py")
        expected = (plain.returncode, plain.stdout, plain.stderr.replace("/plain/", "/warm/"))
        assert results[name] == expected, name
    assert (tmp_path / "warm/unflushed.txt").read_text() == (tmp_path / "warm/held.txt").read_text() == "kept"


def test_modules_end_with_the_programs_own_frames_only(agent: Agent, tmp_path: Path) -> None:
    for name in ("error", "spawn", "status"):
        write(tmp_path, f"{name}_program.py", ENDINGS[name])
    error, spawn, status = (
        outcome(agent.spawn(MODULE, f"{name}_program", cwd=str(tmp_path))) for name in ("error", "spawn", "status")
    )
    assert error[0] == 1
    assert error[2].count('File "') == 2
    assert error[2].endswith("ValueError: wrong\n")
    assert spawn == (0, "__mp_main__\n0\n", "")
    assert status[0] == 3
    assert outcome(agent.spawn(MODULE, "no_such_module")) == (
        1,
        "",
        f"{sys.executable}: No module named no_such_module\n",
    )


def test_workers_draw_different_numbers(agent: Agent, tmp_path: Path) -> None:
    program = "import random, numpy, torch; print(random.random(), numpy.random.rand(), torch.rand(1).item())"
    script = write(tmp_path, "draw.py", program)
    workers = [agent.spawn(SCRIPT, script) for _ in range(2)]
    first, second = (worker.stdout().split() for worker in workers)
    assert len(first) == 3
    assert not set(first) & set(second)


def test_a_warm_worker_computes_with_the_threads_that_its_environment_names(agent: Agent, tmp_path: Path) -> None:
    script = write(tmp_path, "threads.py", "import torch; print(torch.get_num_threads())")
    assert agent.spawn(SCRIPT, script, env={"OMP_NUM_THREADS": "3"}).stdout() == "3\n"


def test_a_variable_that_python_reads_at_its_start_is_heeded(agent: Agent, tmp_path: Path) -> None:
    script = write(tmp_path, "seed.py", "print(hash('text'))")
    worker = agent.spawn(SCRIPT, script, env={"PYTHONHASHSEED": "1"})
    assert worker.stdout() != agent.spawn(SCRIPT, script, env={"PYTHONHASHSEED": "2"}).stdout()
    assert worker.stdout() == ""  # all of it was read above
    assert agent.spawn(SCRIPT, script, env={"PYTHONHASHSEED": "1"}).wait() == 0


def test_commands_run_in_their_own_program(agent: Agent, tmp_path: Path) -> None:
    command = agent.spawn(COMMAND, "sh", "-c", "pwd; echo $NAME; exit 7", cwd=str(tmp_path), env={"NAME": "value"})
    assert outcome(command) == (7, f"{tmp_path}\nvalue\n", "")
    script = write(tmp_path, "executable.py", "import os, sys; print(sys.executable, os.getppid())")
    python = agent.spawn(SCRIPT, script, python=sys.executable)
    assert python.stdout().split() == [sys.executable, str(os.getpid())]


def test_what_cannot_be_started_is_an_error_that_names_it(agent: Agent, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        assert agent.spawn(COMMAND, "no-such-command").pid
    assert missing.value.filename == "no-such-command"
    with pytest.raises(PermissionError):
        assert agent.spawn(COMMAND, str(tmp_path)).pid
    with pytest.raises(FileNotFoundError) as folder:
        assert agent.spawn(SCRIPT, "any.py", cwd=str(tmp_path / "missing")).pid
    assert folder.value.filename == str(tmp_path / "missing")


def test_a_worker_that_ignores_sigterm_is_killed_when_the_grace_is_over(agent: Agent) -> None:
    worker = agent.spawn(COMMAND, "sh", "-c", "trap 'echo asked' TERM; echo ready; while :; do sleep 0.05; done")
    assert worker.read_line() == "ready"
    at = time.monotonic()
    worker.call("stop", signal.SIGTERM, 0.3)
    worker.call("stop", signal.SIGTERM, 100.0)
    assert worker.wait() == -signal.SIGKILL
    assert 0.3 <= time.monotonic() - at < scaled(5.0)
    assert worker.stdout() == "asked\n"


def test_a_worker_that_obeys_within_the_grace_is_not_killed(agent: Agent, tmp_path: Path) -> None:
    program = """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
        print("ready")
        while True:
            time.sleep(0.01)
    """
    worker = agent.spawn(SCRIPT, write(tmp_path, "obedient.py", program))
    assert worker.read_line() == "ready"
    worker.call("stop", signal.SIGTERM, 60.0)
    assert worker.wait() == 5


def test_what_a_worker_leaves_running_ends_with_it(agent: Agent) -> None:
    worker = agent.spawn(COMMAND, "sh", "-c", "sleep 1000 & echo $!")
    left = int(worker.read_line())
    assert worker.wait() == 0
    assert wait_until(lambda: not Path(f"/proc/{left}").exists(), GONE_S)  # nor is it left as a zombie


def test_a_hung_worker_shows_its_stacks(agent: Agent, tmp_path: Path) -> None:
    program = "import time\ndef hang():\n    print('ready')\n    time.sleep(1000)\nhang()"
    worker = agent.spawn(SCRIPT, write(tmp_path, "hung.py", program))
    assert worker.read_line() == "ready"
    assert worker.call("dump_stacks")
    other = agent.spawn(COMMAND, "sleep", "1000")
    assert other.pid
    assert not other.call("dump_stacks")
    worker.call("signal", signal.SIGTERM)
    assert worker.wait() == -signal.SIGTERM
    assert "in hang" in worker.stderr()


def test_workers_inherit_the_standard_input_of_the_agent_unless_it_is_not_theirs(tmp_path: Path) -> None:
    source, write_fd = os.pipe()
    before = os.dup(0)
    os.dup2(source, 0)
    try:
        agent = Agent(warm=False)
    finally:
        os.dup2(before, 0)
        for fd in (source, before):
            os.close(fd)
    try:
        for kind, *command in ((COMMAND, "head", "-n1"), (SCRIPT, write(tmp_path, "read.py", READ_LINE))):
            os.write(write_fd, b"a line\n")
            assert agent.spawn(kind, *command, reads_stdin=True).stdout() == "a line\n"
            assert agent.spawn(kind, *command).stdout() == ""
        os.close(write_fd)
        assert agent.spawn(COMMAND, "cat", reads_stdin=True).stdout() == ""
    finally:
        agent.close()


def test_workers_of_an_agent_without_standard_streams_find_their_own(tmp_path: Path) -> None:
    told = tmp_path / "told"
    worker = f"import os, sys; print(repr(sys.stdin.read()), file=open({str(told)!r}, 'w'))"
    program = (
        "import os; os.closerange(0, 3)\n"
        "from tests.process.fork_server_agent import Agent\n"
        "from multiworld.process.spawn.entrypoint import EntrypointKind\n"
        "agent = Agent(warm=False)\n"
        f"agent.spawn(EntrypointKind.COMMAND, {sys.executable!r}, '-c', {worker!r}, reads_stdin=True).wait()\n"
        "agent.close()\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=scaled(30), check=False).returncode == 0
    assert told.read_text() == "''\n"


def test_workers_live_on_when_the_fork_server_is_killed(cold: Agent) -> None:
    worker = cold.spawn(COMMAND, "sh", "-c", "read line || exit 3")
    survivor = cold.spawn(COMMAND, "cat", "/dev/zero")
    assert worker.wait() == 3  # there is nothing to read
    assert survivor.pid
    os.kill(cold.server.pid, signal.SIGKILL)
    assert "SIGKILL" in cold.lost.get(timeout=scaled(GONE_S))
    with pytest.raises(ConnectionError):
        assert cold.spawn(COMMAND, "true").pid
    cold.restart(warm=False)
    assert cold.spawn(COMMAND, "true").wait() == 0
    assert is_running(survivor.pid)
    cold.call(cold.server.watch, [survivor.pid])
    cold.call(cold.server.close)
    assert survivor.wait() == -signal.SIGKILL


def test_a_module_that_cannot_be_imported_is_named(cold: Agent) -> None:
    cold.restart(preload=["no_such_module"])
    assert cold.lost.get(timeout=scaled(20)) == (
        "--preload no_such_module failed: ModuleNotFoundError: No module named 'no_such_module'"
    )
    assert not cold.server.is_ready


def test_functions_are_called_with_what_they_are_told_and_their_descriptor(tmp_path: Path) -> None:
    write(tmp_path, "functions.py", FUNCTIONS)
    agent = Agent(preload=["functions"], paths=[str(tmp_path), *sys.path])
    try:
        file = seqpacket.sealed(b"passed")
        arguments = json.dumps({"text": "\N{SNOWMAN}", "none": None})
        worker = agent.spawn(
            FUNCTION, "functions:show", arguments, cwd=None, named="member-1", set_up="functions:take", passed=[file]
        )
        failing = agent.spawn(FUNCTION, "functions:fail", "0")
        missing = agent.spawn(FUNCTION, "no_such_module:main", "0")
        unready = agent.spawn(FUNCTION, "functions:show", "0", set_up="functions:no_such_function")
        told, *rest = worker.stdout().splitlines()
        os.close(file)
        assert json.loads(told) == [
            {"text": "\N{SNOWMAN}", "none": None}, ["passed"], ["member-1"], str(tmp_path), os.getcwd(), ["0", "1", "2"]
        ]  # fmt: skip
        assert (sorted(rest), worker.wait()) == (["from a thread", "last words"], 5)
        trace = failing.stderr()
        assert trace.startswith(f'Traceback (most recent call last):\n  File "{tmp_path}/functions.py", line ')
        assert trace.endswith("LookupError: no such thing\n")
        assert failing.wait() == 1
        assert missing.stderr().endswith("ModuleNotFoundError: No module named 'no_such_module'\n")
        assert missing.wait() == 1
        with pytest.raises(OSError, match="no attribute 'no_such_function'"):
            assert unready.pid
    finally:
        agent.close()


def test_a_function_is_refused_by_a_fork_server_that_is_not_warm(cold: Agent) -> None:
    with pytest.raises(OSError, match="json:loads needs a fork server that is warm"):
        assert cold.spawn(FUNCTION, "json:loads", "0").pid


def test_a_module_that_need_not_be_there_is_warned_of(tmp_path: Path) -> None:
    write(tmp_path, "leaves.py", "raise SystemExit('not today')")
    modules = ["leaves", "no_such_module", "json"]
    server = ForkServer.start(preload=modules, must_preload=False, paths=[str(tmp_path), *sys.path])
    try:
        assert server.wait_ready() == [
            "leaves was not preloaded: SystemExit: not today",
            "no_such_module was not preloaded: ModuleNotFoundError: No module named 'no_such_module'",
        ]
    finally:
        server.close()


def test_who_waits_for_a_fork_server_learns_of_its_end() -> None:
    server = ForkServer.start(preload=["no_such_module"])
    try:
        with pytest.raises(ConnectionError, match="--preload no_such_module failed: ModuleNotFoundError"):
            server.wait_ready()
    finally:
        server.close()


@pytest.mark.parametrize("warm", [True, False])
def test_nothing_outlives_a_killed_agent(warm: bool, tmp_path: Path) -> None:
    script = write(tmp_path, "sleeper.py", SLEEPER)
    workers = [["script", script], ["command", "sh", "-c", "sleep 1000 & echo $!; trap '' TERM HUP; wait"]]
    options = json.dumps({"warm": warm, "workers": workers})
    agent = subprocess.Popen(
        [sys.executable, "-m", "tests.process.fork_server_agent", options], stdout=subprocess.PIPE, text=True
    )
    with agent:
        try:
            assert agent.stdout is not None
            report = json.loads(agent.stdout.readline())
            assert command_line(report["server"]) == command_line(agent.pid)  # forked from it, with torch if warm
        finally:
            agent.kill()
    pids = [report["server"], *report["workers"], *map(int, report["lines"])]
    assert len(pids) == 5
    assert wait_until(lambda: not any(map(is_running, pids)), GONE_S), [pid for pid in pids if is_running(pid)]


def test_a_preloaded_module_that_starts_threads_is_named(
    cold: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    write(tmp_path, "threaded.py", program)
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.WARNING):
        cold.restart(preload=["threaded"])
        assert cold.spawn(COMMAND, "true").wait() == 0
    assert "--preload threaded started 1 thread(s)" in caplog.text


def test_spares_become_workers_and_are_replaced(cold: Agent, tmp_path: Path) -> None:
    cold.restart(warm=False, spares=2)
    workers = [cold.spawn(COMMAND, "sh", "-c", "echo $PPID") for _ in range(4)]
    assert [worker.stdout() for worker in workers] == [f"{os.getpid()}\n"] * 4


def test_a_spare_that_is_stopped_becomes_no_worker(cold: Agent) -> None:
    forked: Queue[int] = Queue()
    cold.call(cold.server.close)
    cold.server = ForkServer.start(warm=False, spares=1)
    cold.call(cold.server.attach, cold.loop, cold.lost.put, forked.put)
    spare = forked.get(timeout=scaled(WAIT_S))
    started = process_start_time(spare)
    assert started is not None
    os.kill(spare, signal.SIGSTOP)
    assert wait_until(lambda: process_state(spare, started) != RUNNING, scaled(WAIT_S))  # stopped, or killed by now
    worker = cold.spawn(COMMAND, "true")
    assert worker.pid != spare
    assert worker.wait() == 0


def test_nothing_is_left_of_a_closed_fork_server(no_leaks: None) -> None:
    agent = Agent(warm=False, spares=2)
    try:
        for _ in range(3):
            assert agent.spawn(COMMAND, "sh", "-c", "sleep 1000 & exit 1").wait() == 1
        assert agent.spawn(COMMAND, "sleep", "1000").pid
        with pytest.raises(FileNotFoundError):
            assert agent.spawn(COMMAND, "no-such-command").pid
    finally:
        agent.close()
