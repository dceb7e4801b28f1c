"""What torchrun's agent does beside its workers: timers, health check, metrics. Threads and pipes are real."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch._utils_internal import get_default_numa_options
from torch.distributed.elastic import metrics
from torch.distributed.elastic.agent.server import local_elastic_agent
from torch.distributed.elastic.timer.api import expires
from torch.distributed.elastic.timer.file_based_local_timer import FileTimerClient
from torch.numa import binding

from multiworld.elastic.job.actions import Outcome
from multiworld.elastic.job.options import JobOptions, RestartBudget
from multiworld.elastic.torch_services.health_check import PORT_VARIABLE, TIMEOUT_S, check_health
from multiworld.elastic.torch_services.metrics import JobMetrics, metrics_of_run
from multiworld.elastic.torch_services.services import TorchServices
from multiworld.elastic.torch_services.timers import (
    ENABLE_VARIABLE,
    FILE_VARIABLE,
    OverrunTimer,
    TimerWatch,
    _is_read,
    watch_timers,
)
from multiworld.process.spawn.entrypoint import Entrypoint, EntrypointKind
from multiworld.process.spawn.worker_program import _bind
from multiworld.testing import wait_until
from multiworld.wire.progress.thread import ProgressThread
from tests.unit.elastic.job.test_job import failure

pytestmark = pytest.mark.usefixtures("no_leaks")

OPTIONS = JobOptions(
    entrypoint=Entrypoint(kind=EntrypointKind.SCRIPT, target="train.py"),
    role="trainer",
    budget=RestartBudget(max_restarts=3),
)


def eventually(condition: Callable[[], bool]) -> None:
    assert wait_until(condition, timeout_s=10, poll_s=0.005)


@pytest.fixture
def loop() -> Iterator[ProgressThread]:
    loop = ProgressThread("test")
    yield loop
    loop.stop()


# ---- timers


class Watched:
    """The timers of this process, watched, and those that it overran."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.overrun: list[OverrunTimer] = []
        watch = watch_timers({ENABLE_VARIABLE: "1", FILE_VARIABLE: str(path)}, "job", self.overrun.append)
        assert watch is not None
        self.watch: TimerWatch = watch

    def client(self, signum: int = signal.SIGKILL) -> FileTimerClient:
        eventually(lambda: _is_read(self.watch.path))
        return FileTimerClient(self.watch.path, signum)

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self.watch.close()


def test_who_overruns_a_timer_is_named_and_neither_it_nor_the_agent_is_killed_by_the_watch(tmp_path: Path) -> None:
    with Watched(tmp_path / "timers") as watched:
        with expires(after=0.1, scope="epoch 1", client=watched.client()):
            eventually(lambda: bool(watched.overrun))
        [overrun] = watched.overrun
        assert (overrun.pid, overrun.scope, overrun.signum) == (os.getpid(), "epoch 1", signal.SIGKILL)
        assert 0.0 < overrun.after_s < 0.21
        assert str(OverrunTimer(1, "epoch 1", 0.21, 9)) == "its timer epoch 1 ran out after about 0.2 s"
    assert not watched.path.exists()


def test_a_timer_that_is_given_back_in_time_or_names_no_signal_ends_nobody(tmp_path: Path) -> None:
    with Watched(tmp_path / "timers") as watched:
        with expires(after=0.05, scope="kept", client=watched.client()):
            pass  # torch's server alone would kill it, as it reads that it was set and that it was given back apart
        with expires(after=0.01, scope="told", client=watched.client(0)):
            eventually(lambda: bool(watched.overrun))
        assert [(each.scope, each.signum) for each in watched.overrun] == [("told", 0)]


def test_a_watch_that_nobody_ever_wrote_to_ends_and_removes_its_pipe(tmp_path: Path) -> None:
    with Watched(tmp_path / "timers") as watched:
        assert watched.path.is_fifo()
        assert abs(watched.watch.alive_at_s() - time.time()) < 5
    assert not watched.path.exists()
    watched.watch.close()


def test_without_the_variable_there_is_no_thread_and_no_pipe(tmp_path: Path) -> None:
    before = threading.active_count()
    path = tmp_path / "timers"
    for variables in ({FILE_VARIABLE: str(path)}, {ENABLE_VARIABLE: "0", FILE_VARIABLE: str(path)}):
        assert watch_timers(variables, "job", print) is None
    assert threading.active_count() == before
    assert not path.exists()


def test_a_second_agent_with_the_same_pipe_gets_one_of_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Watched(tmp_path / "timers") as first:
        with expires(after=60, scope="any", client=first.client()):
            pass  # so it is read by now
        with Watched(first.path) as second:
            assert second.watch.variables != first.watch.variables
            assert "in use by another agent" in caplog.text
        assert not Path(second.watch.path).exists()
        assert first.path.exists()


def test_a_file_in_the_place_of_the_pipe_is_not_removed(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.write_text("mine")
    with pytest.raises(ValueError, match=f"{FILE_VARIABLE}=.*is no named pipe"):
        Watched(notes)
    assert notes.read_text() == "mine"
    with pytest.raises(ValueError, match=r"no named pipe can be made there: No such file or directory"):
        Watched(tmp_path / "nowhere" / "timers")


# ---- health check


class HealthServer:
    """What a user puts in the place of torch's, which serves nothing."""

    def __init__(self, alive_callback: Callable[[], int], port: int, timeout: int) -> None:
        self.alive, self.port, self.timeout = alive_callback, port, timeout
        self.log: list[str] = []

    def start(self) -> None:
        if self.port == 1:
            raise OSError("the port is taken")
        self.log.append("started")

    def stop(self) -> None:
        self.log.append("stopped")


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> list[HealthServer]:
    made: list[HealthServer] = []

    def create(**arguments: Any) -> HealthServer:
        made.append(HealthServer(**arguments))
        return made[-1]

    monkeypatch.setattr(local_elastic_agent, "create_healthcheck_server", create)
    return made


def test_the_health_check_is_asked_for_as_torchrun_does_and_hears_when_the_agent_was_last_well(
    loop: ProgressThread, servers: list[HealthServer]
) -> None:
    other_at_s = int(time.time()) + 60
    check = check_health({PORT_VARIABLE: "4711"}, loop, [lambda: other_at_s])
    assert check is not None
    [server] = servers
    assert (server.port, server.timeout) == (4711, TIMEOUT_S)
    assert abs(server.alive() - time.time()) < 5
    other_at_s -= 600  # another of its threads hangs
    assert server.alive() == other_at_s
    check.close()
    check.close()
    assert server.log == ["started", "stopped"]


def test_a_progress_thread_that_hangs_is_seen_by_the_health_check(
    loop: ProgressThread, servers: list[HealthServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    check = check_health({PORT_VARIABLE: "4711"}, loop)
    assert check is not None
    go_on = threading.Event()
    loop.call_soon(partial(go_on.wait, 10.0))  # type: ignore[arg-type]
    [server] = servers
    hung_at = server.alive()
    eventually(lambda: time.time() > hung_at + 1.0)
    assert server.alive() == hung_at
    go_on.set()
    check.close()


def test_without_the_variable_or_with_no_number_no_health_check_is_served(
    loop: ProgressThread, servers: list[HealthServer], caplog: pytest.LogCaptureFixture
) -> None:
    assert check_health({}, loop) is None
    assert not caplog.records
    assert check_health({PORT_VARIABLE: "http"}, loop) is None
    assert "'http' is no port" in caplog.text
    assert not servers


def test_a_health_check_that_cannot_be_served_is_told_and_nothing_else_is_left_open(
    loop: ProgressThread, servers: list[HealthServer], tmp_path: Path
) -> None:
    variables = {PORT_VARIABLE: "1", ENABLE_VARIABLE: "1", FILE_VARIABLE: str(tmp_path / "timers")}
    with pytest.raises(ValueError, match="the health check cannot be served: the port is taken"):
        TorchServices(loop, OPTIONS, variables, print)
    assert not (tmp_path / "timers").exists()


def test_torchs_own_health_check_serves_nothing_and_harms_nothing(loop: ProgressThread) -> None:
    check = check_health({PORT_VARIABLE: "4711"}, loop)
    assert check is not None
    check.close()


# ---- metrics


class Collector(metrics.MetricHandler):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        self.values: list[tuple[str, int]] = []
        self.groups: set[str] = set()

    def emit(self, metric_data: Any) -> None:
        self.groups.add(metric_data.group_name)
        if metric_data.name.endswith("flakiness") and metric_data.value == 100:
            raise RuntimeError("a defect of the handler")
        self.values.append((metric_data.name, metric_data.value))


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    metrics.configure(collector, group="torchelastic")  # type: ignore[attr-defined]
    yield collector
    metrics.configure(metrics.NullMetricHandler(), group="torchelastic")  # type: ignore[attr-defined]


def test_a_handler_of_metrics_hears_torchruns_names_of_what_becomes_of_workers_and_run(
    loop: ProgressThread, collector: Collector
) -> None:
    services = TorchServices(loop, OPTIONS, {}, print)
    services.metrics.worker_started(0)
    services.metrics.worker_failed()
    services.metrics.worker_started(1)
    services.close(Outcome(status=0, text=""))
    assert collector.groups == {"torchelastic"}
    *values, (last, duration_ms) = collector.values
    assert (last, duration_ms >= 0) == ("SimpleElasticAgent.run.duration.ms", True)
    assert [(name.removeprefix("workers.trainer."), value) for name, value in values] == [
        ("remaining_restarts", 3),
        ("healthy", 1),
        ("remaining_restarts", 3),
        ("failed", 1),
        ("remaining_restarts", 2),
        ("healthy", 1),
        ("remaining_restarts", 2),
        ("succeeded", 1),
        ("flakiness", 25),
        ("run_total", 1),
        ("run_success_with_retries", 1),
        ("run_success_no_retries", 0),
        ("run_failed_with_retries", 0),
        ("run_failed_no_retries", 0),
        ("SimpleElasticAgent.run.success", 1),
    ]


def test_a_job_that_a_signal_ended_counts_as_no_run_and_one_that_failed_does(
    loop: ProgressThread, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    signalled = TorchServices(loop, OPTIONS, {}, print)
    signalled.metrics.worker_started(0)
    signalled.close(Outcome(status=143, text="", signum=signal.SIGTERM))
    names = [name for name, _ in collector.values]
    assert "SimpleElasticAgent.run.failure" in names
    assert "workers.trainer.run_total" not in names
    failed = TorchServices(loop, OPTIONS, {}, print)
    failed.metrics.worker_started(0)
    failed.close(Outcome(status=1, text="", failures=(failure(0),)))
    assert ("workers.trainer.run_failed_no_retries", 1) in collector.values
    assert "the metrics handler failed at workers.trainer.flakiness" in caplog.text


def test_without_a_handler_of_metrics_there_is_no_thread() -> None:
    before = threading.active_count()
    unheard = JobMetrics("trainer", 3)
    unheard.worker_started(0)
    assert threading.active_count() == before
    unheard.close(5.0)


@pytest.mark.parametrize(("restarts", "max_restarts", "flakiness"), [(0, 0, 0), (0, 3, 0), (3, 3, 75), (9, 3, 75)])
def test_flakiness_is_how_much_of_the_restarts_was_used_up(restarts: int, max_restarts: int, flakiness: int) -> None:
    assert metrics_of_run(restarts, max_restarts, failed=False)["flakiness"] == flakiness
    assert metrics_of_run(restarts, max_restarts, failed=True)["flakiness"] == 100


# ---- processors near a device


def test_torch_binds_nothing_by_default_so_neither_do_we() -> None:
    assert get_default_numa_options() is None  # type: ignore[no-untyped-call]
    assert OPTIONS.numa_binding is None


@pytest.mark.parametrize("release", ["2.13", "2.14"])
def test_a_worker_is_bound_as_torch_says_without_the_device_being_touched_in_it(
    monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    before = os.sched_getaffinity(0)
    last = max(before)
    touched: list[int] = []

    def bind(index: int, options: binding.NumaOptions) -> None:
        touched.append(index)
        assert (index, options.affinity_mode) == (3, binding.AffinityMode.NODE)
        os.sched_setaffinity(0, {last})

    def near(*, gpu_index: int, numa_options: binding.NumaOptions) -> None:  # what needs a GPU to be found out
        bind(gpu_index, numa_options)

    def near_of_2_14(*, device_index: int, numa_options: binding.NumaOptions) -> None:
        bind(device_index, numa_options)

    by_release: dict[str, Any] = {"2.13": near, "2.14": near_of_2_14}
    monkeypatch.setattr(binding, "_maybe_apply_numa_binding_to_current_process", by_release[release])
    try:
        _bind("node", 3)
        assert os.sched_getaffinity(0) == {last}
        assert not touched
    finally:
        os.sched_setaffinity(0, before)


def test_a_worker_that_cannot_be_bound_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding.logger, "disabled", True)  # it shows the traceback of the child, too
    with pytest.raises(RuntimeError, match=r"not bound to the processors near device 99: (?!TypeError)\w+Error"):
        _bind("node", 99)
