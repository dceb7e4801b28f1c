"""What programs expect of torchrun, they get from ``multiworld run``, called as a command or from within."""

from __future__ import annotations

import errno
import io
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path

import pytest
from torch.distributed.elastic import events
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from multiworld.elastic.agent.master_store import MasterStore
from multiworld.elastic.launch.launcher import JobError
from multiworld.run import main
from multiworld.testing import scaled
from tests import warm_programs

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("no_leaks")]

CONTRACT = (
    "LOCAL_RANK RANK GROUP_RANK ROLE_RANK ROLE_NAME LOCAL_WORLD_SIZE WORLD_SIZE ROLE_WORLD_SIZE GROUP_WORLD_SIZE "
    "MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID "
    "TORCHELASTIC_ERROR_FILE TORCHELASTIC_USE_AGENT_STORE OMP_NUM_THREADS"
)
REPORTING = f"""
    import os, sys
    if "fail" in sys.argv:
        raise RuntimeError("asked to")
    found = [name for name in {CONTRACT!r}.split() if name in os.environ]
    open(os.path.join(sys.argv[1], os.environ["RANK"]), "w").write(" ".join(found))
"""
REDUCING = """
    import os, sys
    import torch
    import torch.distributed as dist

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=sys.argv[2], rank=rank, world_size=size)
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.destroy_process_group()
    open(os.path.join(sys.argv[1], str(rank)), "w").write(f"{total.item()} {dist.is_torchelastic_launched()}")
"""


@pytest.fixture(scope="module", autouse=True)
def what_stays() -> None:
    """The first c10d store of a process makes a pipe that stays, for all that follow."""
    MasterStore("127.0.0.1", 0).close()


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(REPORTING))
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("PET_", "TORCHELASTIC_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("faulthandler.enable", lambda **_: None)  # record turns it on, and pytest has it on already


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def written(out: Path) -> dict[int, str]:
    return {int(path.name): path.read_text() for path in out.iterdir()}


def test_every_worker_has_torchruns_variables(program: Path, out: Path) -> None:
    main(["--standalone", "--run-path", "--nproc-per-node=2", "--start-method=spawn", str(program), str(out)])
    assert written(out) == {0: CONTRACT, 1: CONTRACT}


def test_variables_stand_for_options_and_any_command_is_started(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"NNODES": "1", "NPROC_PER_NODE": "3", "NO_PYTHON": "1", "MONITOR_INTERVAL": "1"}.items():
        monkeypatch.setenv(f"PET_{name}", value)
    script = tmp_path / "touch.sh"
    script.write_text('#!/bin/sh\necho "creating $RANK"\necho "$MASTER_ADDR" > "$1/$RANK"\n')
    script.chmod(0o755)
    console = io.StringIO()
    monkeypatch.setenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[rank${rank}]: ")
    with redirect_stdout(console):
        main(["--redirects=3", "--tee=3", str(script), str(out)])
    assert written(out) == dict.fromkeys(range(3), "127.0.0.1\n")
    assert sorted(console.getvalue().splitlines()) == [f"[rank{rank}]: creating {rank}" for rank in range(3)]


def test_a_failed_worker_raises_what_torchrun_raises_and_the_event_handler_hears_of_it(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    monkeypatch.setattr(events, "record", lambda event, destination="null": heard.append(event.name))
    with pytest.raises(ChildFailedError) as raised:
        main(["--nproc-per-node=2", f"--log-dir={tmp_path}/logs", str(program), "fail"])
    _, failure = raised.value.get_first_failure()
    assert failure.exitcode == 1
    assert heard == ["torchelastic.worker.status.FAILED"]
    assert list(tmp_path.glob("logs/*/failure.json"))


@pytest.mark.parametrize("method", ["tcp", "env"])
def test_plain_process_groups_meet_at_the_port_that_the_user_gave(method: str, out: Path, tmp_path: Path) -> None:
    path, port = tmp_path / "reduce.py", free_port()
    path.write_text(textwrap.dedent(REDUCING))
    place = f"tcp://localhost:{port}" if method == "tcp" else "env://"
    static = ["--master-addr=localhost", f"--master-port={port}", "--node-rank=0"]
    main(["--run-path", "--nproc-per-node=2", *static, str(path), str(out), place])
    assert written(out) == {0: "2.0 True", 1: "2.0 True"}


@pytest.mark.parametrize("option", ["--rdzv-endpoint=localhost:0", "--master-port=0"])
def test_a_static_job_of_one_host_takes_any_free_port_if_asked_to(option: str, out: Path, tmp_path: Path) -> None:
    path = tmp_path / "reduce.py"
    path.write_text(textwrap.dedent(REDUCING))
    main(["--run-path", "--nproc-per-node=2", option, str(path), str(out), "env://"])
    assert written(out) == {0: "2.0 True", 1: "2.0 True"}


@contextmanager
def listener(answer: bytes | None) -> Iterator[int]:
    """Listen at a port, and say that to everybody who comes; None: take nobody."""

    def serve() -> None:
        with suppress(OSError):  # closed below
            while True:
                guest, _ = server.accept()
                with guest:
                    guest.sendall(answer or b"")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        if answer is not None:
            thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            if answer is not None:
                thread.join()


@pytest.mark.parametrize(
    ("answer", "options", "reason"),
    [
        (None, ["--master-addr=127.0.0.1"], "it takes connections, and says nothing"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ["--nnodes=2", "--rdzv-backend=c10d"], "it does not answer as one"),
    ],
)
def test_what_else_listens_where_agents_are_to_meet_is_named_within_seconds(
    answer: bytes | None, options: list[str], reason: str, program: Path
) -> None:
    with listener(answer) as port:
        place = f"--master-port={port}" if answer is None else f"--rdzv-endpoint=127.0.0.1:{port}"
        before = time.monotonic()
        with pytest.raises(JobError, match=rf"EADDRINUSE, \S+ \(pid {os.getpid()}\) .* is no agent .*: {reason}"):
            main([*options, place, str(program)])
        assert time.monotonic() - before < scaled(9)  # before a silent agent would be given up


def test_a_proxy_that_closes_connections_until_an_agent_is_behind_it_is_borne_with(
    program: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("multiworld.elastic.leadership.meeting.STRANGE_S", 0.3)
    monkeypatch.setattr("multiworld.elastic.leadership.meeting.FIRST_S", 0.2)
    monkeypatch.setattr("multiworld.elastic.leadership.leadership.STOCK_S", 0.1)
    with listener(b"") as port:
        met = "something takes connections there and closes them; is the agent of that host running"
        with pytest.raises(JobError, match=f"no coordinator .* within 1 s; {met}"):
            main(["--nnodes=2", "--node-rank=1", f"--master-port={port}", "--rdzv-conf=join_timeout=1", str(program)])
    assert f"so far): {met}" in caplog.text


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--node-rank=0"], "1 of at least 2 hosts have come; this one waits for others at 127.0.0.1:{port} ("),
        (["--node-rank=1"], "this host looks for the other agents of the job at 127.0.0.1:{port} ("),
        (["--rdzv-backend=etcd", "--rdzv-endpoint=127.0.0.1:{port}"], "at etcd 127.0.0.1:{port} ("),
    ],
)
def test_an_agent_that_meets_too_few_says_whom_it_waits_for(
    options: list[str], told: str, program: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("multiworld.elastic.leadership.meeting.FIRST_S", 0.2)
    monkeypatch.setattr("multiworld.elastic.leadership.leadership.STOCK_S", 0.1)
    port = free_port()
    given = [option.format(port=port) for option in options]
    with pytest.raises(JobError):
        main(["--nnodes=2", f"--master-port={port}", "--rdzv-conf=join_timeout=1", *given, str(program)])
    assert told.format(port=port) in caplog.text


def test_an_address_at_which_nobody_may_listen_is_named_at_once(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def listen_at(*_: object) -> socket.socket:
        raise PermissionError(errno.EACCES, "Permission denied")  # as to an ordinary user

    monkeypatch.setattr("multiworld.elastic.agent.shared_port.listen_at", listen_at)
    with pytest.raises(JobError, match=r"cannot meet at 127\.0\.0\.1:1: this host cannot listen at .*: .*denied"):
        main(["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:1", str(program)])


def test_agents_of_two_hosts_meet_at_the_endpoint(program: Path, out: Path) -> None:
    options = ["--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{free_port()}"]
    command = [sys.executable, "-m", "multiworld.run", *options, "--rdzv-id=two", str(program), str(out)]
    agents = [warm_programs.Popen(command, stdin=subprocess.DEVNULL) for _ in range(2)]
    try:
        assert [agent.wait(40) for agent in agents] == [0, 0]
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
    assert sorted(written(out)) == [0, 1, 2, 3]


def test_a_launcher_that_was_started_without_streams_runs_its_workers_and_ends_with_their_status() -> None:
    call = "import sys; from multiworld.cli.main import main; sys.exit(main())"
    worker = "echo out; echo err >&2; exit 3"
    command = [sys.executable, "-c", call, "run", "--no-python", "sh", "-c", worker]
    without = ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *command]
    assert subprocess.run(without, timeout=30).returncode == 3
