"""A function on its way to workers, what they return, and what torch's ``LaunchConfig`` means to our launcher."""

from __future__ import annotations

import multiprocessing.spawn
import os
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch.distributed.launcher import api as torch_launcher

from multiworld import launch, launcher
from multiworld.elastic.job.options import JobOptions, RestartBudget
from multiworld.elastic.launch import functions
from multiworld.elastic.launch.function_call import (
    ResultError,
    forget_result,
    keep_result,
    load_call,
    load_results,
    pickled_call,
)
from multiworld.elastic.launch.functions import LaunchConfig, elastic_launch
from multiworld.process.spawn.entrypoint import EntrypointKind


def double(number: int) -> int:
    return 2 * number


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What a worker would do to its interpreter."""
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(multiprocessing.spawn, "prepare", told.append)
    return told


@pytest.fixture
def without_cloudpickle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)


def test_closures_arrive_with_what_they_close_over_and_the_path_they_import_from(
    prepared: list[dict[str, Any]],
) -> None:
    pytest.importorskip("cloudpickle")
    factor = 3
    function, arguments = load_call(pickled_call(lambda number: factor * number, [4]))
    assert function(*arguments) == 12
    (preparation,) = prepared
    assert set(sys.path) - {""} <= set(preparation["sys_path"])
    assert "init_main_from_path" not in preparation  # the function brings along what it needs of __main__


@pytest.mark.usefixtures("without_cloudpickle")
def test_functions_of_modules_arrive_without_cloudpickle_and_workers_run_the_script_for_its_own(
    prepared: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    main = ModuleType("__main__")
    main.__file__ = "/data/script.py"
    monkeypatch.setitem(sys.modules, "__main__", main)
    function, arguments = load_call(pickled_call(double, [4]))
    assert function(*arguments) == 8
    assert prepared[0]["init_main_from_path"] == "/data/script.py"


@pytest.mark.usefixtures("without_cloudpickle")
def test_what_needs_cloudpickle_is_refused_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"<lambda> and its arguments cannot be sent.*pip install cloudpickle"):
        pickled_call(lambda: None, [])
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    monkeypatch.setattr(double, "__module__", "__main__")
    with pytest.raises(ValueError, match=r"double is defined in an interactive session: install cloudpickle"):
        pickled_call(double, [1])


def test_arguments_that_cannot_be_sent_are_refused() -> None:
    with pytest.raises(ValueError, match=r"double and its arguments cannot be sent to workers: .*lock"):
        pickled_call(double, [threading.Lock()])


def test_results_are_found_by_the_rank_that_a_worker_had_at_last(tmp_path: Path) -> None:
    for local_rank, result in ((0, "of an earlier attempt"), (0, "zero"), (1, {"one": 1})):
        keep_result(tmp_path, local_rank, "7", result)
    assert load_results(tmp_path, {0: 4, 1: 2}, function="f") == {4: "zero", 2: {"one": 1}}


def test_a_rank_that_returned_nothing_is_named_also_if_an_earlier_attempt_did(tmp_path: Path) -> None:
    for local_rank in (0, 1):
        keep_result(tmp_path, local_rank, "7", "of an earlier attempt")
    forget_result(tmp_path, 1)
    with pytest.raises(ResultError, match=r"no result of f from rank 2: .* ended with status 0 before") as raised:
        load_results(tmp_path, {0: 4, 1: 2}, function="f")
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (copy.function, copy.rank) == ("f", 2)


def test_a_result_that_cannot_be_loaded_here_is_named_with_its_rank(tmp_path: Path) -> None:
    (tmp_path / "0").write_bytes(b"cno_such_module_here\nthing\n.")
    with pytest.raises(ResultError, match=r"from rank 3: .* cannot be loaded .*No module named 'no_such_module_here'"):
        load_results(tmp_path, {0: 3}, function="f")


def test_a_result_that_cannot_be_sent_names_rank_and_type(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="rank 3 returns a lock, which cannot be sent to its launcher"):
        keep_result(tmp_path, 0, "3", threading.Lock())


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[JobOptions]:
    options: list[JobOptions] = []
    fake = ModuleType("multiworld.elastic.launch.launcher")

    def note(given: JobOptions) -> dict[int, int]:
        options.append(given)
        return {0: 4, 1: 5}

    fake.__dict__["launch"] = note
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    return options


@pytest.mark.parametrize("kind", [LaunchConfig, torch_launcher.LaunchConfig])
def test_a_config_of_ours_or_of_torch_means_the_options_of_a_launcher(
    kind: Callable[..., torch_launcher.LaunchConfig], launched: list[JobOptions]
) -> None:
    config = kind(
        min_nodes=1,
        max_nodes=2,
        nproc_per_node=2,
        run_id="job7",
        role="trainer",
        rdzv_backend="static",
        rdzv_endpoint="host0:1",
        rdzv_configs={"rank": 1, "join_timeout": 5},
        max_restarts=2,
        local_addr="10.0.0.1",
        signals_to_handle="SIGTERM",
        shutdown_timeout=7,
    )
    assert elastic_launch(config, "train")("--lr", 0.1) == {4: None, 5: None}
    (options,) = launched
    assert options.entrypoint.kind is EntrypointKind.COMMAND
    assert (options.entrypoint.target, options.entrypoint.arguments) == ("train", ("--lr", "0.1"))
    assert (options.min_nodes, options.max_nodes, options.num_workers, options.node_rank) == (1, 2, 2, 1)
    assert (options.run_id, options.role, options.local_addr, options.shutdown_s) == ("job7", "trainer", "10.0.0.1", 7)
    assert options.rdzv_config == {"join_timeout": "5", "timeout": "900"}
    assert options.budget == RestartBudget(max_restarts=2)
    assert [each.name for each in options.signals] == ["SIGTERM"]
    assert options.logs.specs is config.logs_specs


def test_one_host_needs_no_more_than_the_number_of_its_workers(
    launched: list[JobOptions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    elastic_launch(LaunchConfig(1, 1, nproc_per_node=1), "true")()
    (options,) = launched
    assert options.is_alone
    assert options.run_id
    assert options.logs.specs is None
    assert not os.listdir(tmp_path)


def test_a_static_rendezvous_needs_the_rank_of_the_host() -> None:
    config = LaunchConfig(1, 1, 1, rdzv_backend="static", rdzv_endpoint="localhost:1")
    with pytest.raises(ValueError, match=r"needs the rank of this host: rdzv_configs=\{'rank': 0\}"):
        elastic_launch(config, "true")()


def test_both_modules_that_replace_torchs_have_it() -> None:
    assert launcher.elastic_launch is launch.elastic_launch is functions.elastic_launch
    assert launcher.LaunchConfig is launch.LaunchConfig is functions.LaunchConfig
    assert set(torch_launcher.__all__) <= set(launcher.__all__)
