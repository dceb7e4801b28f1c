"""What a launch says survives the way to the worker, and it is warm only where that makes no difference."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from multiworld.process.spawn.entrypoint import Entrypoint, EntrypointKind
from multiworld.process.spawn.launch_order import Launch, suits_interpreter
from multiworld.process.spawn.worker_program import command_line

SCRIPT = Entrypoint(kind=EntrypointKind.SCRIPT, target="train.py")
MODULE = Entrypoint(kind=EntrypointKind.MODULE, target="package.train")
COMMAND = Entrypoint(kind=EntrypointKind.COMMAND, target="./train")
FUNCTION = Entrypoint(kind=EntrypointKind.FUNCTION, target="package.train:main")
LAUNCH = Launch(entrypoint=SCRIPT, arguments=("-n", "4"), env={"NAME": "value"}, cwd="/", warm=True)


@pytest.mark.parametrize(
    "launch",
    [
        LAUNCH,
        replace(LAUNCH, entrypoint=replace(MODULE, python="/usr/bin/python3"), warm=False),
        replace(LAUNCH, arguments=(), numa=("node", 1), reads_stdin=False),
        replace(LAUNCH, entrypoint=replace(FUNCTION, named="member-1"), cwd=None, set_up="package:take"),
        replace(LAUNCH, env={"NAME": b"\xff\xfe".decode("utf-8", "surrogateescape")}, cwd="/ä \n"),
    ],
)
def test_a_launch_arrives_as_it_was_sent(launch: Launch) -> None:
    assert Launch.from_bytes(launch.to_bytes()) == launch


@pytest.mark.parametrize("entrypoint", [COMMAND, replace(SCRIPT, python="/usr/bin/python3")])
def test_another_program_than_this_python_is_never_warm(entrypoint: Entrypoint) -> None:
    assert not replace(LAUNCH, entrypoint=entrypoint).can_be_warm(LAUNCH.env)


def test_scripts_and_modules_are_warm_if_they_may() -> None:
    for entrypoint in (SCRIPT, MODULE):
        launch = replace(LAUNCH, entrypoint=entrypoint)
        assert launch.can_be_warm({})
        assert not replace(launch, warm=False).can_be_warm({})


def test_a_function_is_always_warm() -> None:
    assert replace(LAUNCH, entrypoint=FUNCTION, env={"PYTHONPATH": "/other"}).can_be_warm({})
    with pytest.raises(ValueError, match="only a forked process"):
        command_line(replace(LAUNCH, entrypoint=FUNCTION))


@pytest.mark.parametrize(
    "name", ["PYTHONPATH", "PYTHONHASHSEED", "LD_PRELOAD", "LC_ALL", "TORCH_LOGS", "OMP_PROC_BIND"]
)
def test_what_is_read_once_must_be_the_same(name: str) -> None:
    assert suits_interpreter({name: "1"}, {name: "1"})
    assert not suits_interpreter({name: "1"}, {name: "2"})
    assert not suits_interpreter({}, {name: "1"})
    assert not suits_interpreter({name: "1"}, {})


@pytest.mark.parametrize("name", ["RANK", "TORCHELASTIC_RUN_ID", "CUDA_VISIBLE_DEVICES", "PYTHONUNBUFFERED"])
def test_other_variables_may_differ(name: str) -> None:
    assert suits_interpreter({name: "1"}, {})
    assert suits_interpreter({}, {name: "1"})


def test_a_number_of_threads_can_be_changed_but_not_taken_back() -> None:
    assert suits_interpreter({}, {"OMP_NUM_THREADS": "1"})
    assert suits_interpreter({"OMP_NUM_THREADS": "4"}, {"OMP_NUM_THREADS": "1"})
    assert not suits_interpreter({"OMP_NUM_THREADS": "4"}, {})


@pytest.mark.parametrize(
    ("entrypoint", "command"),
    [
        (SCRIPT, [sys.executable, "-u", "train.py", "-n", "4"]),
        (MODULE, [sys.executable, "-u", "-m", "package.train", "-n", "4"]),
        (replace(SCRIPT, python="python9"), ["python9", "-u", "train.py", "-n", "4"]),
        (COMMAND, ["./train", "-n", "4"]),
    ],
)
def test_a_cold_worker_is_this_command(entrypoint: Entrypoint, command: list[str]) -> None:
    assert command_line(replace(LAUNCH, entrypoint=entrypoint)) == command
