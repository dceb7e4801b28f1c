"""Which errors of a worker come again however often it is started."""

from __future__ import annotations

import importlib
import inspect
import traceback
from typing import Any

import pytest

from multiworld import training
from multiworld.elastic.job.final_errors import OF_ALL, OF_ONE, WITH_ARGUMENTS, Finality, finality
from multiworld.errors import MultiworldError
from multiworld.model import errors as model_errors
from multiworld.training import errors, job
from multiworld.training.data.opening import open_loader


def of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def raised(error: Exception) -> Exception:
    try:
        raise error
    except type(error) as caught:
        return caught


@pytest.mark.parametrize("name", sorted(OF_ALL | OF_ONE))
def test_names_are_those_of_errors_that_the_training_raises(name: str) -> None:
    module, _, kind = name.rpartition(".")
    assert module in (errors.__name__, model_errors.__name__)
    assert issubclass(getattr(importlib.import_module(module), kind), MultiworldError)


@pytest.mark.parametrize("name", sorted(WITH_ARGUMENTS))
def test_functions_with_arguments_are_those_of_the_job(name: str) -> None:
    assert inspect.isfunction(getattr(job, name, None) or getattr(job.Job, name, None))


def test_a_wrong_loop_is_final_for_the_job() -> None:
    assert finality(of(raised(errors.StepError("optimizer.step() was called outside of a step")))) is Finality.JOB


def test_a_poisoned_step_is_final_for_the_job_whatever_it_followed_from() -> None:
    error = errors.PoisonedStepError(7, 3, "KeyError: 'a bug'", ("4", "8"))
    error.__cause__ = raised(KeyError("a bug"))
    assert finality(of(raised(error))) is Finality.JOB


def test_another_setup_is_final_for_a_worker() -> None:
    assert finality(of(raised(errors.SetupError("rank 1 and rank 0 differ in: the model.")))) is Finality.WORKER


@pytest.mark.parametrize(
    "error",
    [
        KeyError("StepError"),
        ValueError("a value of the program's own"),
        errors.TooFewReplicasError(1, 2, 600.0),
        errors.ReplicaBrokenError(0, 1, "its process has ended."),
    ],
)
def test_a_start_may_help_after_other_errors(error: Exception) -> None:
    assert finality(of(raised(error))) is Finality.NONE


def test_an_argument_that_the_job_refuses_is_final_for_a_worker() -> None:
    with pytest.raises(ValueError, match="name=") as caught:
        job.join("a/b", rank=0, world_size=1, store="127.0.0.1:1")
    assert finality(of(caught.value)) is Finality.WORKER


@pytest.mark.parametrize(
    ("option", "arguments"),
    [
        (training.Checkpoint, {"dir": None}),
        (training.Checkpoint, {"dir": "d", "every_steps": 0}),
        (training.Health, {"compare_every": -1}),
        (training.Replay, {"every": 0}),
        (training.LocalSGD, {"every": 0}),
        (training.DiLoCo, {"every": 0}),
    ],
)
def test_an_option_that_makes_no_sense_is_final_for_a_worker(option: Any, arguments: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        option(**arguments)
    assert finality(of(caught.value)) is Finality.WORKER


def test_an_error_of_a_user_s_own_options_is_not_final() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/u/options.py", line 2, in __post_init__\n    f()\nValueError: no'
    )
    assert finality(text) is Finality.NONE


def test_the_same_error_from_elsewhere_is_not_final() -> None:
    with pytest.raises(ValueError, match="divide") as caught:
        open_loader([1, 2, 3], global_batch=3, micro_batch=2)
    assert finality(of(caught.value)) is Finality.NONE


def test_text_without_a_traceback_is_not_final() -> None:
    assert finality("") is Finality.NONE
    assert finality("multiworld.training.errors.NoSuchError: a word") is Finality.NONE
