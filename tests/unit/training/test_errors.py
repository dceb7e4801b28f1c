"""What a training ends in is found again in what its process wrote."""

from __future__ import annotations

import traceback

import pytest

from multiworld.elastic.job.tracebacks import Cause, exception_line, find_cause, last_traceback
from multiworld.training import join
from multiworld.training.errors import PeerRaisedError, SampleError

QUOTED = "Traceback (most recent call last):\n  File 'train.py', line 3\nKeyError: 'a bug'\n"


def raised(error: Exception) -> Exception:
    try:
        raise error
    except type(error) as caught:
        return caught


def written(error: Exception) -> str:
    return "".join(traceback.format_exception(raised(error)))


def test_the_traceback_of_another_rank_is_not_taken_for_one_of_this_rank() -> None:
    text = written(PeerRaisedError(1, 7, "KeyError: 'a bug'", QUOTED))
    found = last_traceback(text.splitlines())
    assert found is not None
    assert "PeerRaisedError: the program raised on rank 1 in step 7" in (exception_line(found) or "")
    assert find_cause(found) == Cause(1, None)
    assert "KeyError: 'a bug'" in found


def test_a_sample_that_cannot_be_loaded_is_named_and_not_only_its_error() -> None:
    found = last_traceback(written(SampleError(1, 6, ("77",), "KeyError: 'a bug'", QUOTED)).splitlines())
    assert "sample 77 of step 1" in (exception_line(found or "") or "")


def test_a_backend_that_there_is_not_is_refused_at_the_join() -> None:
    with pytest.raises(ValueError, match="unknown backend 'infiniband': expected one of auto"):
        join("gpt", backend="infiniband", rank=0, world_size=1, store="tcp://127.0.0.1:1")
