"""Errors go back to whoever asked as what they are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from multiworld.serving import errors
from multiworld.serving.errors import ServingError
from multiworld.serving.flow.error_answer import ErrorAnswer

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "BadRequestError": ("embed", "no tensor"),
    "CanaryFailedError": ("embed", "it raised ValueError"),
    "DeadlineExceededError": (2.5, "embed"),
    "DeploymentError": ("no host is there",),
    "MemberLostError": ("embed-1",),
    "GatewayClosedError": ("gateway-1",),
    "HostExhaustedError": ("host b: Too many open files",),
    "OverloadedError": (7, 0.5),
    "PoisonedRequestError": ("embed", 2),
    "RequestIdReusedError": ("order 66",),
    "RequestLostError": ("embed", "embed-1"),
    "SequenceTooLongError": ("embed", "the sequence has 9 tokens; 8 are served"),
    "ServingError": ("it failed",),
    "StageFailedError": ("embed", "embed-1", "ValueError: no"),
    "StageUnavailableError": ("embed", 3.0),
    "StateLostError": ("embed", "ab12"),
    "UnknownStageError": ("head", ("embed",)),
}


def read(fields: Any) -> ServingError:
    """Return the error that such JSON is."""
    return ErrorAnswer.decode(json.dumps(fields).encode()).error()


@pytest.mark.parametrize("name", [name for name in errors.__all__ if isinstance(getattr(errors, name), type)])
def test_every_error_comes_back_as_itself(name: str) -> None:
    error: ServingError = getattr(errors, name)(*ARGUMENTS[name])
    back = ErrorAnswer.decode(ErrorAnswer.of(error).encode()).error()
    assert (type(back), str(back)) == (type(error), str(error))


@pytest.mark.parametrize("fields", [{}, {"type": "BadRequestError"}, {"type": "MultiworldError", "args": []}])
def test_what_is_no_error_of_ours_is_one_all_the_same(fields: dict[str, Any]) -> None:
    assert str(read(fields)).startswith("an unknown error came back")


def test_an_error_with_other_arguments_than_its_class_takes_is_one_all_the_same() -> None:
    assert str(read({"type": "OverloadedError", "args": [1]})).startswith("a malformed error came back")


@pytest.mark.parametrize(
    "fields", [{"type": "OverloadedError", "args": [5, None]}, {"type": "DeadlineExceededError", "args": ["2s", "x"]}]
)
def test_an_error_whose_text_cannot_be_made_is_one_all_the_same(fields: dict[str, Any]) -> None:
    assert str(read(fields)).startswith("a malformed error came back")


@pytest.mark.parametrize("fields", [[], {"type": 3, "args": []}, {"type": "ServingError", "args": "x"}, "no"])
def test_an_error_that_does_not_decode_is_one_all_the_same(fields: Any) -> None:
    assert str(read(fields)).startswith("a malformed error came back")
    assert str(ErrorAnswer.decode(b"{").error()).startswith("a malformed error came back")


def test_what_is_no_json_is_refused_before_it_leaves() -> None:
    with pytest.raises((TypeError, ValueError)):
        ErrorAnswer.of(ServingError(object())).encode()


def test_the_release_before_reads_the_same_fields() -> None:
    told = json.loads(ErrorAnswer.of(errors.RequestLostError("a", "a-1"), doubtful=True).encode())
    assert told == {"type": "RequestLostError", "args": ["a", "a-1"], "doubtful": True}
