"""Worker processes: reports, commands, signals, failures, and that nothing is ever left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from multiworld.testing import WorkerFailedError, WorkerGroup, wait_until
from multiworld.testing.worker_process import UNKNOWN_STATUS, Ends, ForeignProcess
from tests.process import kit_programs

pytestmark = [pytest.mark.cold, pytest.mark.usefixtures("no_leaks")]


def test_a_worker_reports_takes_commands_and_returns() -> None:
    with WorkerGroup() as workers:
        worker = workers.start(kit_programs.echo, "hello", times=2, name="echo")
        assert worker.await_event("greeted")["greeting"] == "hello"
        worker.command("go", speed=3)
        worker.command("stop")
        assert worker.await_event("told", name="go")["speed"] == 3
        assert worker.await_event("returned")["value"] == "HELLO"
        assert worker.wait() == 0
        assert [report["name"] for report in worker.events("told")] == ["go", "stop"]


def test_a_coroutine_function_gets_its_commands_without_blocking_its_loop() -> None:
    with WorkerGroup() as workers:
        worker = workers.start("tests.process.kit_programs:echo_async", times=1)
        worker.command("go")
        assert worker.await_event("returned")["value"] == 1


def test_times_of_a_worker_compare_with_ours() -> None:
    with WorkerGroup() as workers:
        before = time.monotonic()
        clock = workers.start(kit_programs.report_clock).await_event("clock")
        assert before < clock["now"] <= clock.at < time.monotonic()


def test_a_script_runs_with_its_arguments(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint('on stdout')\nRESULT = [__name__, *sys.argv[1:]]\n")
    with WorkerGroup() as workers:
        worker = workers.start(script, "--flag", "x")
        assert worker.await_event("returned")["value"] == ["__main__", "--flag", "x"]
        assert worker.wait() == 0
        assert worker.stdout == "on stdout\n"


def test_killing_and_stopping_are_seen_in_the_state() -> None:
    with WorkerGroup() as workers:
        worker = workers.start(kit_programs.echo, "x", times=1)
        worker.await_event("greeted")
        worker.stop()
        assert worker.state == "stopped"
        worker.cont()
        worker.command("go")
        worker.await_event("told")
        other = workers.start(kit_programs.echo, "x", times=1)
        killed_at = other.kill()
        assert other.wait() == -signal.SIGKILL
        assert time.monotonic() - killed_at < 5
        assert other.state == "ended with -9"
        other.kill()  # once more harms nobody


def test_a_process_that_another_has_started_is_a_worker_as_others_are() -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(ends: Ends) -> ForeignProcess:
        code = f"from multiworld.testing.worker import main; main({ends.report_fd}, {ends.command_fd})"
        command = [sys.executable, "-c", code]
        started.append(
            subprocess.Popen(
                command, stdout=ends.stdout_fd, stderr=ends.stderr_fd, pass_fds=(ends.report_fd, ends.command_fd)
            )
        )
        return ForeignProcess(started[-1].pid)

    with WorkerGroup() as workers:
        ended = []
        workers.call_at_close(lambda: ended.append([process.wait() for process in started]))
        worker = workers.start(kit_programs.echo, "hello", times=1, process=start)
        worker.await_event("greeted")
        worker.stop()
        assert worker.state == "stopped"
        worker.kill()
        assert worker.wait() == UNKNOWN_STATUS
        failing = workers.start(kit_programs.fail, process=start)
        with pytest.raises(WorkerFailedError, match="raised before"):
            failing.await_event("anything")
        assert failing.wait() == UNKNOWN_STATUS
        assert "Traceback" in failing.stderr
        assert started[0].wait() == -signal.SIGKILL
        worker.kill()  # it is reaped: another process may have its pid
    assert ended == [[-signal.SIGKILL, 1]]


def test_a_worker_can_be_interrupted_although_its_parent_ignores_that() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as of all that a shell starts in the background
    try:
        with WorkerGroup() as workers:
            worker = workers.start(kit_programs.echo, "x", times=1)
            worker.await_event("greeted")
            worker.signal(signal.SIGINT)
            assert worker.wait() == -signal.SIGINT
            assert "KeyboardInterrupt" in worker.stderr
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_worker_that_crashes_shows_where() -> None:
    with WorkerGroup() as workers:
        worker = workers.start(kit_programs.echo, "x", times=1)
        worker.await_event("greeted")
        worker.signal(signal.SIGSEGV)
        with pytest.raises(WorkerFailedError, match=r"(?s)ended with -11.*Segmentation fault.*in echo"):
            worker.await_event("anything")


def test_a_failing_worker_shows_its_traceback_and_its_standard_error() -> None:
    with WorkerGroup() as workers:
        worker = workers.start(kit_programs.fail)
        with pytest.raises(WorkerFailedError, match="as planned") as caught:
            worker.await_event("never")
        assert "LookupError" in str(caught.value)
        assert worker.wait() == 1
        assert "on the way to failure" in worker.describe()


def test_waiting_ends_at_the_deadline_and_at_the_end_of_the_worker() -> None:
    with WorkerGroup() as workers:
        worker = workers.start(kit_programs.echo, "x", times=1)
        worker.await_event("greeted")
        with pytest.raises(WorkerFailedError, match=r"did not report 'never' within"):
            worker.await_event("never", timeout_s=0.05)
        with pytest.raises(WorkerFailedError, match="did not end within"):
            worker.wait(timeout_s=0.05)
        worker.kill()
        with pytest.raises(WorkerFailedError, match="ended before it reported 'never'"):
            worker.await_event("never")
        with pytest.raises(WorkerFailedError, match="ended before it could be told"):
            worker.command("too late")


def test_the_first_report_of_several_workers_is_found() -> None:
    with WorkerGroup() as workers:
        quiet, loud = (workers.start(kit_programs.echo, name, times=1, name=name) for name in ("quiet", "loud"))
        loud.command("speak")
        worker, report = workers.await_first(("told", "returned"), among=[quiet, loud])
        assert (worker, report.event, report["name"]) == (loud, "told", "speak")
        other = workers.start(kit_programs.echo, "other", times=1, name="other")
        with pytest.raises(WorkerFailedError, match=r"'other' did not report 'never' within .* s, nor did 'quiet'"):
            workers.await_first("never", timeout_s=0.05, among=[other, quiet])
        loud.wait()
        with pytest.raises(WorkerFailedError, match="worker 'loud' ended before it reported 'never'"):
            workers.await_first("never", among=[quiet, loud])


def test_a_worker_waits_for_a_command_no_longer_than_it_says() -> None:
    with WorkerGroup() as workers:
        workers.start(kit_programs.wait_for_nothing).await_event("timed out")


def test_what_a_worker_reports_at_its_exit_arrives() -> None:
    with WorkerGroup() as workers:
        worker = workers.start(kit_programs.exit_with, 3)
        worker.await_event("atexit")
        assert worker.wait() == 3


def test_a_parent_that_is_slow_to_read_loses_nothing() -> None:
    with WorkerGroup() as workers:
        worker = workers.start(kit_programs.tick, 20_000)
        worker.await_event("returned")
        assert [report["number"] for report in worker.events("tick")] == list(range(20_000))


def test_leaving_the_group_ends_stopped_workers_and_their_children() -> None:
    with WorkerGroup() as workers:
        worker = workers.start(kit_programs.start_child_and_hang)
        child = worker.await_event("child")["pid"]
        worker.stop()
    assert worker.returncode == -signal.SIGKILL
    assert wait_until(lambda: not _runs(child), timeout_s=5)


def test_a_failed_block_prints_what_its_workers_did(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), WorkerGroup() as workers:
        _ = workers.start(kit_programs.echo, "x", times=1, name="the one").await_event("greeted").at / 0
    printed = capsys.readouterr().err
    assert "the one (tests.process.kit_programs:echo" in printed
    assert "greeted" in printed


def test_a_closed_worker_refuses_signals_as_its_pid_may_be_reused() -> None:
    with WorkerGroup() as workers:
        worker = workers.start(kit_programs.report_clock)
    with pytest.raises(ValueError, match="closed"):
        worker.kill()


def test_what_no_other_process_can_import_is_refused() -> None:
    with WorkerGroup() as workers, pytest.raises(ValueError, match="module-level"):
        workers.start(lambda: None)


@pytest.mark.parametrize("stopped", [False, True])
def test_workers_end_when_their_parent_is_killed(stopped: bool) -> None:
    program = textwrap.dedent(f"""
        import signal, sys
        from multiworld.testing import WorkerGroup
        from tests.process import kit_programs
        with WorkerGroup() as workers:
            worker = workers.start(kit_programs.echo, "x", times=1)
            worker.await_event("greeted")
            {"worker.stop()" if stopped else ""}
            print(worker.pid, flush=True)
            signal.pause()
    """)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, encoding="utf-8") as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
        gone = wait_until(lambda: not _runs(pid), timeout_s=10)
    if not gone:
        os.kill(pid, signal.SIGKILL)
    assert gone


def _runs(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"
