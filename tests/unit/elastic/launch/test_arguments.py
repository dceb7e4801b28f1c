"""The launcher's command line, measured against torchrun's own reading of the same line."""

from __future__ import annotations

import importlib
import os
import re
import sys
import tempfile
from argparse import Action
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.elastic.multiprocessing import Std
from torch.distributed.elastic.utils.api import macros

from multiworld.elastic.agent.environment import local_arguments
from multiworld.elastic.job.options import JobOptions, RestartBudget, RestartPolicy
from multiworld.elastic.launch.arguments import options_from
from multiworld.elastic.launch.parser import launch_parser, run_parser
from multiworld.process.spawn.entrypoint import EntrypointKind

torchrun: Any = importlib.import_module("torch.distributed.run")  # half of it has no annotations
old_torchrun: Any = importlib.import_module("torch.distributed.launch")
SCRIPT = __file__
LOCAL_RANK = 3
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

# a value for every option that torchrun has, None for a switch; with two hosts, so that none of them is overruled
VALUES: dict[str, str | None] = {
    "nnodes": "1:4",
    "nproc_per_node": "3",
    "rdzv_backend": "c10d",
    "rdzv_endpoint": "host0:29400",
    "rdzv_id": "job7",
    "rdzv_conf": " timeout = 5, join_timeout=a=b",
    "standalone": None,
    "max_restarts": "3",
    "monitor_interval": "1.5",
    "start_method": "fork",
    "event_log_handler": "console",
    "role": "trainer",
    "module": None,
    "no_python": None,
    "run_path": None,
    "log_dir": "logs",
    "redirects": "0:1,1:3",
    "tee": "3",
    "local_ranks_filter": "0,2",
    "duplicate_stdout_filters": "apple,,pie,orange",
    "duplicate_stderr_filters": "apple",
    "node_rank": "1",
    "master_addr": "10.0.0.1",
    "master_port": "1234",
    "local_addr": "10.0.0.2",
    "logs_specs": "default",
    "numa_binding": "node",
    "signals_to_handle": "SIGTERM,SIGUSR1",
    "shutdown_timeout": "7",
    "virtual_local_rank": None,
    "log_line_prefix_template": "${hostname}:${rank} ",
}
COMPLETION = "print_completion"  # since 2.14, as the template; it is the only one that we do not take
NO_VARIABLE = {"logs_specs", "numa_binding"}  # torchrun reads no PET_ variable for these
BASE = ["--nnodes=2"]
NOT_IN_THIS_TORCH = (
    set() if hasattr(torchrun, "_PrintCompletionAction") else {"log_line_prefix_template"}
)  # torchrun has it since 2.14


def _torchrun_actions() -> list[Action]:
    actions = torchrun.get_args_parser()._actions
    return [each for each in actions if each.option_strings and each.dest not in ("help", COMPLETION)]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A clean environment in an empty folder; torchrun writes both."""
    before = dict(os.environ)
    for name in list(os.environ):
        if name.startswith(("PET_", "TORCH", "MULTIWORLD_")) or name in ("OMP_NUM_THREADS", "PYTHON_EXEC"):
            del os.environ[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    os.environ.clear()
    os.environ.update(before)


def options(*arguments: str, environ: Mapping[str, str] | None = None) -> JobOptions:
    return options_from(run_parser().parse_args([*arguments, SCRIPT]), {} if environ is None else environ)


def _theirs(arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch, *, old: bool) -> dict[str, Any]:
    """Return what torchrun would launch, as plain values."""
    launched: list[tuple[Any, Any, list[str]]] = []

    class Launch:
        def __init__(self, config: Any, entrypoint: Any) -> None:
            self.config, self.entrypoint = config, entrypoint

        def __call__(self, *args: str) -> None:
            launched.append((self.config, self.entrypoint, list(args)))

    monkeypatch.setattr(torchrun, "elastic_launch", Launch)
    monkeypatch.setattr(torch.multiprocessing, "_set_thread_name", lambda name: None)  # it would rename this thread
    if old:
        old_torchrun.launch(old_torchrun.parse_args(list(arguments)))
    else:
        torchrun.run(torchrun.parse_args(list(arguments)))
    ((config, entrypoint, args),) = launched
    logs = config.logs_specs
    plain = {name: value for name, value in vars(config).items() if name not in ("logs_specs", "metrics_cfg")}
    return {
        **plain,
        "run_id": UUID.sub("UUID", config.run_id),
        "numa_options": config.numa_options and config.numa_options.affinity_mode.value,
        "log_dir": logs._root_log_dir if "logs" in logs._root_log_dir else None,
        "redirects": logs._redirects,
        "tee": logs._tee,
        "local_ranks_filter": logs._local_ranks_filter,
        "command": (entrypoint, *macros.substitute(args, str(LOCAL_RANK))),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
    }


def _ours(arguments: Sequence[str], *, old: bool) -> dict[str, Any]:
    parser = launch_parser() if old else run_parser()
    namespace = parser.parse_args(arguments)
    job = options_from(namespace)
    ranked = {} if job.node_rank is None else {"rank": job.node_rank}
    omp = os.environ.get("OMP_NUM_THREADS")
    return {
        "min_nodes": job.min_nodes,
        "max_nodes": job.max_nodes,
        "nproc_per_node": job.num_workers,
        "run_id": UUID.sub("UUID", job.run_id),
        "role": job.role,
        "rdzv_endpoint": job.rdzv_endpoint,
        "rdzv_backend": job.rdzv_backend,
        "rdzv_configs": {"timeout": 900, **job.rdzv_config, **ranked},
        "rdzv_timeout": -1,
        "max_restarts": 0 if job.budget is None else job.budget.max_restarts,
        "monitor_interval": job.monitor_interval_s,
        "start_method": job.start_method,
        "log_line_prefix_template": job.logs.prefix_template,
        "local_addr": job.local_addr,
        "event_log_handler": job.event_log_handler,
        "numa_options": job.numa_binding,
        "signals_to_handle": ",".join(each.name for each in job.signals),
        "duplicate_stdout_filters": list(job.logs.duplicate_stdout_filters),
        "duplicate_stderr_filters": list(job.logs.duplicate_stderr_filters),
        "virtual_local_rank": job.virtual_local_rank,
        "shutdown_timeout": job.shutdown_s,
        "log_dir": job.logs.log_dir,
        "redirects": Std.from_str(job.logs.redirects),
        "tee": Std.from_str(job.logs.tee),
        "local_ranks_filter": job.logs.local_ranks_filter,
        "command": _command(job, runs_path=namespace.run_path),
        "omp_num_threads": omp if job.omp_num_threads is None else str(job.omp_num_threads),
    }


def _command(job: JobOptions, *, runs_path: bool) -> tuple[Any, ...]:
    entry = job.entrypoint
    python: tuple[Any, ...] = (entry.python or sys.executable, "-u")
    if runs_path:
        python = (torchrun.run_script_path,)
    before = {EntrypointKind.SCRIPT: python, EntrypointKind.MODULE: (*python, "-m"), EntrypointKind.COMMAND: ()}
    return (*before[entry.kind], entry.target, *local_arguments(entry, LOCAL_RANK))


def assert_same(arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch, *, old: bool = False) -> None:
    ours = _ours(arguments, old=old)  # first: torchrun writes the environment
    theirs = _theirs(arguments, monkeypatch, old=old)
    assert ours == theirs


def test_every_option_of_torchrun_is_compared_below() -> None:
    assert {each.dest for each in _torchrun_actions()} == set(VALUES) - NOT_IN_THIS_TORCH


@pytest.mark.parametrize(
    "spelling", [(each.dest, text) for each in _torchrun_actions() for text in each.option_strings]
)
def test_every_spelling_of_an_option_means_what_it_means_to_torchrun(
    spelling: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dest, text = spelling
    value = VALUES[dest]
    assert_same([*BASE, text, *([] if value is None else [value]), "/bin/sh", "-x", "--nnodes=9"], monkeypatch)


@pytest.mark.parametrize("dest", sorted(set(VALUES) - NO_VARIABLE - NOT_IN_THIS_TORCH))
def test_every_variable_of_an_option_means_what_it_means_to_torchrun(
    dest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = VALUES[dest]
    monkeypatch.setenv("PET_NNODES", "2")
    monkeypatch.setenv(f"PET_{dest.upper()}", "1" if value is None else value)
    assert_same(["/bin/sh", "-x"], monkeypatch)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--nproc-per-node=4",
        "--nproc-per-node=cpu",
        "--nproc-per-node=auto",
        "--nnodes=1 --master-port=1234",
        "--nnodes=1 --master-addr=10.0.0.1",
        "--nnodes=1 --rdzv-endpoint=host0:1 --rdzv-id=7",
        "--nnodes=1 --rdzv-backend=c10d",
        "--nnodes=1:4",
        "--nnodes=2 --node-rank=1 --rdzv-backend=c10d --rdzv-endpoint=host0:29400 --rdzv-id=7",
        "--standalone --nnodes=2 --rdzv-id=7 --rdzv-conf=timeout=3",
        "--rdzv-backend=whatever --rdzv-endpoint=host0",
        "--redirect=3 --te 1",  # abbreviations
        "-r3 -t 2",
        "--run-path --no-python --module",
        "--nnodes=2 --nproc-per-node=2 --master-addr=[::1]",
    ],
)
def test_a_line_means_what_it_means_to_torchrun(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_same([*line.split(), SCRIPT, "--rank=${local_rank}", "$$5", "--", "-m"], monkeypatch)


def test_a_job_of_one_host_keeps_the_name_that_it_is_given() -> None:
    """torchrun draws an id in its place; by the name ``multiworld status --job`` finds it."""
    assert options_from(run_parser().parse_args(["--rdzv-id", "job7", SCRIPT])).run_id == "job7"
    assert UUID.fullmatch(options_from(run_parser().parse_args([SCRIPT])).run_id)


@pytest.mark.parametrize("line", ["", "--use-env", "--use_env --no-python", "--module", "--run-path"])
def test_a_line_means_what_it_means_to_the_old_launcher(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_same([*line.split(), "--nproc-per-node=4", "/bin/sh", "-x"], monkeypatch, old=True)


@pytest.mark.parametrize(
    "variable",
    [
        "PYTHON_EXEC=/usr/bin/python3",
        "OMP_NUM_THREADS=7",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=9",
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=[${rank}] ",
    ],
)
def test_the_variables_that_torchrun_reads_mean_the_same(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*variable.split("=", 1))
    assert_same(["--nproc-per-node=4", SCRIPT], monkeypatch)


def test_the_prefix_of_lines_is_an_option_with_every_torch_and_comes_before_the_variable() -> None:
    variable = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "v"}
    assert options("--log-line-prefix-template", "[${rank}] ", environ=variable).logs.prefix_template == "[${rank}] "
    assert options("--log_line_prefix_template=x").logs.prefix_template == "x"
    assert options(environ=variable).logs.prefix_template == "v"
    assert options(environ={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": ""}).logs.prefix_template == ""
    assert options().logs.prefix_template is None


@pytest.mark.skipif(bool(NOT_IN_THIS_TORCH), reason="torchrun has --print-completion since 2.14")
def test_torchruns_script_of_completion_is_refused_with_the_name_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        options("--print-completion", "zsh")
    assert ended.value.code == 2
    assert "multiworld completion zsh prints a script for all commands" in capsys.readouterr().err


def test_an_abbreviation_that_torchrun_takes_means_the_same() -> None:
    theirs = torchrun.get_args_parser()
    for each in _torchrun_actions():
        for text in each.option_strings:
            for prefix in (text[:end] for end in range(3, len(text)) if text.startswith("--")):
                if len(theirs._get_option_tuples(prefix)) == 1:
                    value = [] if each.nargs == 0 else [VALUES[each.dest] or ""]
                    expected = theirs.parse_args([prefix, *value, SCRIPT])
                    parsed = run_parser().parse_args([prefix, *value, SCRIPT])
                    assert str(getattr(parsed, each.dest)) == str(getattr(expected, each.dest)), prefix


def test_abbreviations_of_ours_are_taken_and_two_spellings_of_one_option_are_not_ambiguous() -> None:
    job = options("--prog", "5", "--lease", "1", "--rdzv-b=c10d", "--nproc", "2")
    assert (job.progress_timeout_s, job.lease_s, job.rdzv_backend, job.num_workers) == (5.0, 1.0, "c10d", 2)


def test_an_ambiguous_option_is_refused_with_the_options_that_it_may_stand_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        options("--m", "5")
    told = capsys.readouterr().err
    assert "ambiguous option: --m could match --master-addr, --master-port, --max-restarts, --module" in told


@pytest.mark.parametrize(
    "given",
    ["--progress 1", "--c 3", "--p", "--cut", "--lease=x", "--no-p", "--r 16", "--nnodes", "-- -m x", "-m", "--help"],
)
@pytest.mark.parametrize("line", ["", "--nnodes 1 -r3 -t 0:1", "-m", "--no-python", "--", "--log-dir=/x --"])
def test_what_stands_after_the_script_is_the_scripts(given: str, line: str) -> None:
    parsed = run_parser().parse_args([*line.split(), "/bin/sh", *given.split()])
    assert parsed.training_script == "/bin/sh"
    assert parsed.training_script_args == given.split()
    old = launch_parser().parse_args(["--use-env", "script.py", *given.split()])
    assert old.training_script_args == given.split()


@pytest.mark.parametrize(("text", "seconds"), [("", None), ("0", None), ("-1", None), ("7.5", 7.5)])
def test_a_worker_may_sleep_in_the_kernel_for_as_long_as_torchs_variable_says(text: str, seconds: float | None) -> None:
    environ = {"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": text}
    assert options(environ=environ).uninterruptible_s == seconds


def test_the_master_may_be_an_ipv6_address_without_brackets() -> None:
    assert options("--nnodes=2", "--master-addr=fd00::1", "--master-port=80").rdzv_endpoint == "[fd00::1]:80"


def test_without_our_options_nothing_is_decided_for_the_user() -> None:
    job = options()
    assert job.budget is None
    assert job.restart is RestartPolicy.AUTO
    assert (job.warm, job.spares, job.preload, job.lease_s, job.token) == (True, 0, (), 2.0, None)


@pytest.mark.parametrize(
    ("arguments", "variables", "field", "value"),
    [
        (["--restart", "worker"], {}, "restart", RestartPolicy.WORKER),
        (["--restart=all"], {}, "restart", RestartPolicy.ALL),
        ([], {"PET_RESTART": "world"}, "restart", RestartPolicy.WORLD),
        (["--spares", "2"], {"PET_SPARES": "1"}, "spares", 2),
        ([], {"PET_SPARES": "1"}, "spares", 1),
        (["--preload", "a, b.c"], {}, "preload", ("a", "b.c")),
        ([], {"PET_PRELOAD": "a"}, "preload", ("a",)),
        (["--no-warm"], {}, "warm", False),
        (["--no_warm"], {}, "warm", False),
        (["--no-warm", "--warm"], {}, "warm", True),
        ([], {"PET_WARM": "0"}, "warm", False),
        (["--warm"], {"PET_WARM": "0"}, "warm", True),
        (["--lease-s", "0.5"], {}, "lease_s", 0.5),
        (["--lease_s=3"], {}, "lease_s", 3.0),
        ([], {"PET_LEASE_S": "4"}, "lease_s", 4.0),
        (["--max_restarts", "3/10m"], {}, "budget", RestartBudget(max_restarts=3, per_s=600)),
        ([], {"PET_MAX_RESTARTS": "1/1.5h"}, "budget", RestartBudget(max_restarts=1, per_s=5400)),
        (["--max-restarts=0/30s"], {}, "budget", RestartBudget(max_restarts=0, per_s=30)),
        (["--max-restarts=0"], {"PET_MAX_RESTARTS": "9"}, "budget", RestartBudget(max_restarts=0)),
    ],
)
def test_our_options_and_their_variables(
    arguments: list[str], variables: dict[str, str], field: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    assert getattr(options(*arguments), field) == value


@pytest.mark.parametrize(
    ("nnodes", "expected"), [("3", (3, 3, 0)), ("1:8", (1, 8, 0)), ("2+1", (2, 2, 1)), ("2:3+4", (2, 3, 4))]
)
def test_forms_of_nnodes(nnodes: str, expected: tuple[int, int, int]) -> None:
    job = options(f"--nnodes={nnodes}", "--rdzv-backend=c10d", "--rdzv-endpoint=host0:29400")
    assert (job.min_nodes, job.max_nodes, job.spare_nodes) == expected


def test_the_token_comes_from_the_environment_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert options(environ={"MULTIWORLD_TOKEN": "secret"}).token == "secret"
    assert options(environ={"MULTIWORLD_TOKEN": ""}).token is None
    with pytest.raises(SystemExit):
        options("--token=secret")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--nnodes=2:1", "--nnodes 2:1 is impossible: expected 0 < MIN <= MAX"),
        ("--nnodes=0", "--nnodes 0:0 is impossible"),
        ("--nnodes=1:2:3", "--nnodes '1:2:3': expected a number of hosts"),
        ("--nnodes=-1", "--nnodes '-1': expected a number of hosts"),
        ("--nnodes=1+1", "--nnodes 1+1 has spare hosts, but --rdzv-backend static gives each host a fixed rank"),
        ("--nproc-per-node=many", "--nproc-per-node 'many': expected a number, auto, or a device that is here"),
        ("--nproc-per-node=0", "--nproc-per-node 0 is impossible: expected at least 1"),
        ("--nnodes=2 --node-rank=2", "--node-rank 2 is impossible with 2 nodes"),
        ("--spares=-1", "a number of spares is negative: -1"),
        ("--rdzv-conf=timeout", "--rdzv-conf 'timeout': expected KEY=VALUE,KEY=VALUE,..., but found 'timeout'"),
        ("--rdzv-conf==3", "but found '=3'"),
        ("--redirects=4", "--redirects '4': expected 0 (none), 1 (stdout), 2 (stderr) or 3 (both)"),
        ("--tee=0:1,x", "--tee '0:1,x': expected"),
        ("--local-ranks-filter=0,x", "--local-ranks-filter '0,x': expected local ranks, such as 0,2"),
        ("--logs-specs=absent", "--logs-specs 'absent': no installed package has an entry point torchrun.logs_specs"),
        ("--signals-to-handle=SIGTERM,SIGFOO", "--signals-to-handle: there is no signal 'SIGFOO' here"),
        ("--signals-to-handle=SIGKILL", "--signals-to-handle: no process can handle SIGKILL"),
        ("--shutdown-timeout=-1", "--shutdown-timeout '-1': expected a whole number of seconds >= 0"),
        ("--no-python --module", "--no-python and --module exclude each other"),
        ("--no-python", "is not an executable: chmod +x it"),
        ("--no-python absent", "no such command: absent"),
        ("absent.py", "no such script: absent.py"),
        ("--run-path absent.py", "no such script: absent.py"),
        ("/dev", "the folder /dev has no __main__.py: give a Python program"),
        (f"{300 * 'x'}.py", f"the script {300 * 'x'}.py cannot be read: File name too long"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(line: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        options(*line.split())
    assert "\n" not in str(refused.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_workers_per_gpu_are_refused_where_there_is_none() -> None:
    with pytest.raises(ValueError, match=r"--nproc-per-node 'gpu': .*not available"):
        options("--nproc-per-node=gpu")


@pytest.mark.parametrize(
    ("variables", "arguments", "message"),
    [
        (
            {"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "soon"},
            [],
            "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT 'soon': expected a number of seconds",
        ),
        (
            {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "soon"},
            [],
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT 'soon': expected a whole number",
        ),
        ({"PET_START_METHOD": "magic"}, [], "--start-method 'magic': expected one of spawn, fork, forkserver"),
        ({"PET_STANDALONE": "yes"}, [], "a PET_ variable that stands for a switch must be 0 or 1: .*'yes'"),
        ({"PET_WARM": "yes"}, [], "a PET_ variable that stands for a switch must be 0 or 1: .*'yes'"),
        (
            {"CUDA_VISIBLE_DEVICES": "4,5"},
            ["--virtual-local-rank", "--nproc-per-node=3"],
            "--virtual-local-rank needs a device for each of 3 workers, but CUDA_VISIBLE_DEVICES=4,5 names 2",
        ),
    ],
)
def test_variables_that_make_no_sense_are_refused_in_one_sentence(
    variables: dict[str, str], arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(ValueError, match=message):
        options(*arguments, environ=os.environ)


def test_the_old_launcher_gives_no_local_rank_to_an_executable() -> None:
    with pytest.raises(ValueError, match="--no-python needs --use-env here"):
        options_from(launch_parser().parse_args(["--no-python", "/bin/sh"]), {})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--max-restarts=-1", "'-1': expected a number >= 0, or one per time such as 3/10m"),
        ("--max-restarts=3/10", "'3/10': expected a number"),
        ("--max-restarts=3/0m", "'3/0m': the time of a restart budget must be positive"),
        ("--restart=some", "'some': expected one of worker, world, all, auto"),
        ("--lease-s=0", "'0': expected a positive number of seconds"),
        ("--lease-s=inf", "'inf': expected a positive number of seconds"),
        ("--spares=x", "invalid int value: 'x'"),
        ("--unknown", "unrecognized arguments: --unknown"),
        ("--numa-binding=odd", "invalid choice: 'odd'"),
    ],
)
def test_what_cannot_be_parsed_ends_with_status_2_and_one_line(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        options(*line.split())
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("multiworld run: ")
    assert message in told
    assert told.count("\n") == 1


def test_a_bad_variable_of_ours_is_told_like_a_bad_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PET_RESTART", "some")
    with pytest.raises(SystemExit):
        options()
    assert "'some': expected one of worker, world, all, auto" in capsys.readouterr().err


APART = "but no other host can come: without a rendezvous hosts meet at 127.0.0.1"


@pytest.mark.parametrize("nodes", ["2", "1:4"])
def test_several_hosts_without_a_place_to_meet_are_told(nodes: str, caplog: pytest.LogCaptureFixture) -> None:
    options("--nnodes", nodes)
    assert f"--nnodes {nodes}, {APART}" in caplog.text
    assert "--rdzv-backend c10d --rdzv-endpoint HOST:PORT" in caplog.text
    parsed = run_parser().parse_args(["--nnodes", nodes, SCRIPT])
    with pytest.raises(ValueError, match=APART):
        options_from(parsed, {}, may_run_apart=False)


@pytest.mark.parametrize(
    "line",
    [
        "--nnodes=1",
        "--nnodes=2 --node-rank=1",
        "--nnodes=2 --master-addr=host0",
        "--nnodes=2 --rdzv-endpoint=host0:29500",
        "--nnodes=1:2 --rdzv-backend=c10d --rdzv-endpoint=localhost:29400",
        "--nnodes=2 --standalone",
    ],
)
def test_hosts_that_know_where_they_meet_are_not_warned(line: str, caplog: pytest.LogCaptureFixture) -> None:
    options_from(run_parser().parse_args([*line.split(), SCRIPT]), {}, may_run_apart=False)
    assert not caplog.text


def test_a_node_rank_that_means_nothing_is_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    job = options("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:1", "--node-rank=5")
    assert job.node_rank is None
    assert "--node-rank is only for --rdzv-backend static" in caplog.text


def test_a_signal_that_is_named_twice_is_handled_once() -> None:
    assert [each.name for each in options("--signals-to-handle=SIGTERM, SIGTERM,SIGINT").signals] == [
        "SIGTERM",
        "SIGINT",
    ]


def test_the_help_shows_our_options_apart_and_examples() -> None:
    text = run_parser().format_help()
    begin, end = text.index("hosts and restarts"), text.index("options of torchrun")
    ours, rest = text[begin:end], text[:begin] + text[end:]
    for option in ("--nnodes", "--max-restarts", "--restart", "--spares", "--warm", "--preload", "--lease-s"):
        assert f"  {option}" in ours
        assert f"\n  {option}" not in rest
    assert "examples:" in rest
    assert "MULTIWORLD_TOKEN" in rest
    assert text.startswith("usage: multiworld run [OPTIONS] SCRIPT")


@pytest.mark.parametrize("backend", ["c10d", "embedded"])
def test_one_host_needs_no_endpoint(backend: str) -> None:
    job = options(f"--rdzv-backend={backend}", "--nproc-per-node=4")
    assert job.is_alone
    assert job.meeting_place == "localhost:0"
    assert options(f"--rdzv-backend={backend}", "--nnodes=1:2").meeting_place == ""
