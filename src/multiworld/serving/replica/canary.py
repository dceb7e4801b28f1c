"""Tries a new replica with a request that an old one has answered, before it gets any other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...channel.base import Payload
from ...errors import MessageError, ProtocolError
from ...model.user_code import OverdueError, contained, result_of
from ...wire.messages import from_json, to_json
from ...world.manager import WorldManager
from ..errors import CanaryFailedError
from ..flow.packets import Item
from ..flow.payloads import map_tensors, tensors_of
from ..graph import Stage
from ..member.hand_over import hand_over_world
from ..member.messages import DONOR_RANK, TAKER_RANK, as_bytes, as_tensor
from .executor import describe_error, is_async
from .results import checked_result

MAX_BYTES = 4 << 20  # of inputs and output together: what is larger is not kept
EVERY_S = 10.0
LIMIT_S = 60.0
HAND_OVER_S = 20.0


@dataclass(frozen=True)
class Canary:
    """The inputs of one request at one stage, in the order of the work's arguments, and what that answered."""

    inputs: tuple[Payload, ...]
    output: Payload


@dataclass(frozen=True, kw_only=True)
class CanaryAhead:
    """Goes before a canary that is handed over. ``payloads``: how many tensors follow: inputs and output, or none."""

    payloads: int

    def __post_init__(self) -> None:
        if self.payloads < 0 or self.payloads == 1:
            raise ValueError(f"{self.payloads} payloads are no canary")


class CanaryKeeper:
    """Keeps a recent request of a replica, a new one every ten seconds.

    Not of a stage that must not execute a request twice, or whose work answers ``many``: that has state per sequence,
    and a step out of the middle of one can be answered by nobody else. ``due`` is looked at for each request.
    """

    def __init__(self, stage: Stage, work: Callable[..., Any]) -> None:
        self.may_keep = stage.canary is None and stage.idempotent and getattr(work, "many", None) is None
        self.due = self.may_keep
        self.taken: bytes | None = None
        """The id of the request whose result is to be kept."""
        self.kept: Canary | None = None
        self._inputs: tuple[Payload, ...] = ()
        self._next_at = 0.0

    def tick(self, now: float) -> None:
        """Time has passed."""
        if self.may_keep and now >= self._next_at:
            self.due, self._next_at = True, now + EVERY_S

    def take(self, id_: bytes, inputs: Sequence[Item]) -> None:
        """Copy the inputs of a request that is about to be executed: the work may write into what it is given."""
        self.due = False
        if sum(item.size_bytes for item in inputs) <= MAX_BYTES:
            self.taken, self._inputs = id_, tuple(map_tensors(item.payload, torch.clone) for item in inputs)

    def keep(self, result: Payload | Exception) -> None:
        """It was executed. What failed is no example."""
        self.taken = None
        if not isinstance(result, Exception):
            size_bytes = sum(tensor.nbytes for payload in (*self._inputs, result) for tensor in tensors_of(payload))
            if size_bytes <= MAX_BYTES:
                self.kept = Canary(self._inputs, map_tensors(result, torch.clone))
        self._inputs = ()


def given_inputs(stage: Stage) -> tuple[Payload, ...]:
    """Return the inputs of a stage's own example; none if it has none. Raises CanaryFailedError for a bad one."""
    if stage.canary is None or stage.canary is False:
        return ()
    num_inputs = len(stage.inputs or ("",))
    given = stage.canary if isinstance(stage.canary, tuple) else (stage.canary,)
    if len(given) != num_inputs:
        raise CanaryFailedError(stage.name, f"canary has {len(given)} payloads, the stage takes {num_inputs}")
    try:
        return tuple(checked_result(payload, is_ours=False) for payload in given)
    except TypeError as error:
        raise CanaryFailedError(stage.name, f"canary is no payload: {error}") from None


async def answer_canary(stage: Stage, work: Callable[..., Any], inputs: Sequence[Payload]) -> Payload:
    """Return what the work answers. Raises CanaryFailedError if it raises, returns no payload or takes too long."""
    arguments = [map_tensors(payload, lambda tensor: tensor.to(stage.device, copy=True)) for payload in inputs]
    limit_s = LIMIT_S if stage.limit_s is None else stage.limit_s
    try:
        if is_async(work):
            result = await result_of(work(*arguments), limit_s)
        else:
            result = await result_of(asyncio.to_thread(_call, work, arguments, torch.get_num_threads()), limit_s)
        return checked_result(result, is_ours=False)
    except OverdueError:
        raise CanaryFailedError(stage.name, f"no answer within {limit_s:g} s") from None
    except Exception as error:  # the user's code may raise anything
        raise CanaryFailedError(stage.name, f"it raised {describe_error(error)}") from error


@torch.inference_mode()
def _call(work: Callable[..., Any], arguments: Sequence[Payload], num_threads: int) -> Any:
    torch.set_num_threads(num_threads)  # it counts for the thread that calls it
    many = getattr(work, "many", None)
    try:
        if many is None or len(arguments) > 1:
            return work(*arguments)
        (result,) = many([arguments[0]])
    except StopIteration as error:  # which no future can hold
        raise RuntimeError(f"the work raised StopIteration: {error}") from error
    except Exception:
        raise
    except BaseException as error:
        raise contained(error) from error
    if isinstance(result, Exception):
        raise result
    return result


def difference(expected: Payload, got: Payload) -> str:
    """Return what another answer differs in beyond its values; empty for nothing.

    Values differ with the weights. What was finite must be finite: weights that are broken mostly give NaN.
    """
    if isinstance(expected, Tensor) and isinstance(got, Tensor):
        return _tensor_difference("the answer", expected, got)
    if type(expected) is not type(got):
        return f"the answer is a {type(got).__name__}, expected a {type(expected).__name__}"
    if isinstance(expected, dict) and isinstance(got, dict):
        if list(expected) != list(got):
            return f"the answer has the names {', '.join(got)}, expected {', '.join(expected)}"
        pairs = [(repr(name), expected[name], got[name]) for name in expected]
    else:
        if len(expected) != len(got):
            return f"the answer has {len(got)} tensors, expected {len(expected)}"
        pairs = [(f"tensor {index}", *pair) for index, pair in enumerate(zip(expected, got, strict=True))]
    return next((text for name, old, new in pairs if (text := _tensor_difference(name, old, new))), "")


def _tensor_difference(name: str, expected: Tensor, got: Tensor) -> str:
    if expected.dtype != got.dtype:
        return f"{name} has dtype {got.dtype}, expected {expected.dtype}"
    if expected.shape != got.shape:
        return f"{name} has shape {list(got.shape)}, expected {list(expected.shape)}"
    if expected.is_floating_point() or expected.is_complex():
        if expected.dtype.itemsize == 1:  # few operations know the types of 8 bits
            expected, got = expected.float(), got.float()
        bad = int((expected.isfinite() & ~got.isfinite()).sum())
        if bad:
            return f"{name} has {bad} of {got.numel()} elements that are not finite, where they were"
    return ""


async def give_canary(
    manager: WorldManager, giver: str, taker: str, canary: Canary | None, store: str, backend: str
) -> None:
    """Send what is known to a new replica. Raises MultiworldError if it goes, or does not come.

    ``backend``: of the requests; both ends give the same.
    """
    name = _world(giver, taker)
    async with hand_over_world(manager, name, DONOR_RANK, store, backend, HAND_OVER_S) as world:
        payloads = () if canary is None else (*canary.inputs, canary.output)
        ahead = json.dumps(to_json(CanaryAhead(payloads=len(payloads))))
        await world.send_tensors(as_tensor(ahead.encode()), TAKER_RANK, timeout_s=HAND_OVER_S)
        for payload in payloads:
            await world.send_tensors(payload, TAKER_RANK, timeout_s=HAND_OVER_S)
        await world.barrier(timeout_s=HAND_OVER_S)


async def take_canary(manager: WorldManager, giver: str, taker: str, store: str, backend: str) -> Canary | None:
    """Return what ``give_canary`` sends; None if it knows of none. Raises MultiworldError."""
    name = _world(giver, taker)
    async with hand_over_world(manager, name, TAKER_RANK, store, backend, HAND_OVER_S) as world:
        told = as_bytes(await world.recv_tensors(DONOR_RANK, timeout_s=HAND_OVER_S))
        try:
            number = from_json(CanaryAhead, json.loads(told)).payloads
        except (ValueError, MessageError) as error:
            raise ProtocolError(f"{giver} sent nonsense in place of a canary: {error}") from None
        payloads = [await world.recv_tensors(DONOR_RANK, timeout_s=HAND_OVER_S) for _ in range(number)]
        await world.barrier(timeout_s=HAND_OVER_S)
        return Canary(tuple(payloads[:-1]), payloads[-1]) if payloads else None


def _world(giver: str, taker: str) -> str:
    return f"canary:{giver}:{taker}"
