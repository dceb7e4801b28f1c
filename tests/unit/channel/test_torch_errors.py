"""Our errors are caught by the clauses that programs have for those of ``torch.distributed``."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest
import torch.distributed as dist

from multiworld import errors
from multiworld.channel.torch_errors import derive_from_torch
from multiworld.errors import MultiworldError, again

EVIDENCE = ("pair", 3, 1, "its connection was closed")
SAMPLES: list[MultiworldError] = [
    errors.WorldBrokenError(*EVIDENCE),
    errors.PeerDiedError(*EVIDENCE),
    errors.PeerStoppedError(*EVIDENCE),
    errors.PeerSilentError(*EVIDENCE),
    errors.PeerUnreachableError(*EVIDENCE),
    errors.PeerLeftError(*EVIDENCE),
    errors.StaleGenerationError(*EVIDENCE),
    errors.BrokenWorldException("pair", "it was removed"),
    errors.WorldClosedError("pair", 3),
    errors.WorldClosedError("pair", 3, True),
    errors.OperationTimeoutError("pair", 3, "recv", 0.5),
    errors.RequestCancelledError("pair", 3, "recv"),
    errors.TensorMismatchError("pair", 3, 1, "float32[2]", "float32[3]"),
    errors.CollectiveMismatchError("pair", 3, 1, "all_reduce", "barrier"),
    errors.JoinError("pair", "no reason"),
    errors.JoinTimeoutError("pair", "rank 1 of 2 did not come"),
    errors.JoinMismatchError("pair", "another size"),
    errors.JoinRefusedError("pair", "the rank is taken"),
    errors.ChannelUnavailableError("pair", "no driver"),
    errors.StoreError("tcp://127.0.0.1:1", "refused"),
    errors.ProtocolError("a truncated frame"),
    errors.HandshakeError("a wrong token"),
    errors.MultiworldError("of no kind"),
]


def test_every_error_of_a_name_is_one_of_pytorch() -> None:
    kinds = [getattr(errors, name) for name in errors.__all__]
    assert len(kinds) > 20
    for kind in kinds:
        assert issubclass(kind, dist.DistError if issubclass(kind, MultiworldError) else RuntimeError)


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_after_a_trip(error: MultiworldError) -> None:
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), again(error)):
        assert type(other) is type(error)
        assert (other.args, vars(other), str(other)) == (error.args, vars(error), str(error))


def test_errors_of_operations_are_those_of_a_backend() -> None:
    of_operations = [error for error in SAMPLES if hasattr(error, "generation")]
    assert len(of_operations) == 14
    for error in of_operations:
        with pytest.raises(dist.DistBackendError):
            raise again(error)
    assert isinstance(errors.PeerUnreachableError(*EVIDENCE), dist.DistNetworkError)
    assert isinstance(errors.StoreError("tcp://127.0.0.1:1", "refused"), dist.DistStoreError)


@pytest.mark.parametrize("kind", [errors.OperationTimeoutError, errors.JoinTimeoutError])
def test_a_deadline_is_a_timeout_and_says_so(kind: type[MultiworldError]) -> None:
    error = next(sample for sample in SAMPLES if type(sample) is kind)
    assert isinstance(error, TimeoutError)
    assert "timed out" in str(error)


@pytest.mark.parametrize(
    ("kind", "others"),
    [
        (errors.InvalidValueError, [ValueError, RuntimeError]),
        (errors.InvalidTypeError, [TypeError, RuntimeError]),
        (errors.UnsupportedTensorError, [TypeError, NotImplementedError, RuntimeError]),
    ],
)
def test_an_error_of_an_argument_is_of_two_kinds(kind: type[Exception], others: list[type[Exception]]) -> None:
    for other in others:
        with pytest.raises(other):
            raise pickle.loads(pickle.dumps(kind("tag=-1 is out of range")))
    assert not issubclass(kind, MultiworldError)


def test_nothing_is_derived_twice() -> None:
    before = {type(sample): type(sample).__bases__ for sample in SAMPLES}
    derive_from_torch()
    assert {kind: kind.__bases__ for kind in before} == before


PROGRAM = """
import pickle, sys
from multiworld import errors
early = errors.OperationTimeoutError("pair", 3, "recv", 0.5)
assert isinstance(early, RuntimeError) and early.args == ("pair", 3, "recv", 0.5)
assert isinstance(errors.JoinTimeoutError("pair", "nobody came"), RuntimeError)
assert "torch" not in sys.modules
import multiworld
multiworld.World
import torch.distributed
assert isinstance(early, torch.distributed.DistBackendError) and isinstance(early, TimeoutError)
assert pickle.loads(pickle.dumps(early)).args == early.args
"""


def test_errors_do_not_load_pytorch_and_are_of_its_kinds_once_a_world_does() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)
