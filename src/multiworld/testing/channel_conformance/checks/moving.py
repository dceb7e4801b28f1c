"""Messages between two ranks: every tensor arrives as it was."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import multiworld as mw

from ...samples import MOVABLE
from ...tasks import together
from ..catalogue import PAIR, by_members
from ..stage import Stage

SHAPES: Sequence[tuple[int, ...]] = ((), (0,), (1,), (3, 0, 2), (7,), (2, 3, 5), (1025,))
SIZES_BYTES = [kilobytes * 1024 for kilobytes in (2, 16, 64, 128, 512, 1024, 8192)]
"""Where implementations switch from one way to another; sizes just above and below are tried too."""


@by_members(sizes=PAIR)
async def every_dtype_and_shape_arrives(stage: Stage) -> None:
    """A tensor of any dtype and shape arrives with the bits that were sent."""
    world, peer = await stage.join(), 1 - stage.rank
    cases = [(dtype, shape) for dtype in stage.movable for shape in SHAPES]

    async def receive(tag: int, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        target = stage.blank(shape, dtype)
        await world.recv(target, peer, tag=tag)
        stage.check_same(target, stage.sample(shape, dtype, tag, peer), f"recv of {dtype}{list(shape)}")

    sends = [
        world.send(stage.sample(shape, dtype, tag, stage.rank), peer, tag=tag)
        for tag, (dtype, shape) in enumerate(cases)
    ]
    receives = [receive(tag, dtype, shape) for tag, (dtype, shape) in enumerate(cases)]
    await together(*sends, *receives)


@by_members(sizes=PAIR)
async def every_size_arrives(stage: Stage) -> None:
    """A message of any size arrives, whether its receive is there before it or after, in both directions at once."""
    world, peer = await stage.join(), 1 - stage.rank
    sizes = [size + more for size in SIZES_BYTES for more in (-1, 0, 1)]

    async def receive(tag: int) -> None:
        target = stage.blank((sizes[tag],), torch.uint8)
        await world.recv(target, peer, tag=tag)
        stage.check_same(target, stage.sample((sizes[tag],), torch.uint8, tag, peer), f"recv of {sizes[tag]} bytes")

    for sends_first in (0, 1):
        mine = [stage.sample((size,), torch.uint8, tag, stage.rank) for tag, size in enumerate(sizes)]
        sends = [world.send(tensor, peer, tag=tag) for tag, tensor in enumerate(mine)]
        receives = [receive(tag) for tag in reversed(range(len(sizes)))]
        await together(*(sends + receives if stage.rank == sends_first else receives + sends))


@by_members(sizes=PAIR)
async def tensors_of_any_layout_arrive(stage: Stage) -> None:
    """Tensors that are views, transposed, conjugated, or leaves that require gradients are sent and received too."""
    world = await stage.join()
    base = torch.arange(240.0, device=stage.device).reshape(4, 6, 10)
    waves = torch.complex(base, -base)
    sources: list[Tensor] = [base.permute(2, 0, 1), base[:, ::2], base[1:3, 2], base[0, 0, 3].expand(5), base[..., ::3]]
    if stage.channel.can_move(torch.complex64):
        sources += [waves.conj(), waves.conj().imag, waves.mT]
    sources.append(base.clone().requires_grad_())
    for number, source in enumerate(sources):
        what = f"recv of a tensor of strides {source.stride()}"
        if stage.rank == 0:
            await world.send(source, 1)
            continue
        target = torch.zeros(*source.shape, 2, dtype=source.dtype, device=stage.device)[..., 0]
        if number % 2 == 0:
            target = torch.zeros(source.shape, dtype=source.dtype, device=stage.device).requires_grad_()
        await world.recv(target, 0)
        stage.check_same(target.detach(), source.detach().resolve_conj().resolve_neg(), what)


@by_members(sizes=PAIR)
async def payloads_arrive_as_they_were_built(stage: Stage) -> None:
    """What send_tensors takes, a tensor, a list or a dict of any dtypes and shapes, recv_tensors returns."""
    world, peer = await stage.join(), 1 - stage.rank

    def payloads(rank: int) -> list[Any]:
        mixed = [stage.sample((5,), dtype, index, rank) for index, dtype in enumerate(stage.movable)]
        big = [stage.sample((size // 4 + 1,), torch.float32, size, rank) for size in SIZES_BYTES[3:]]
        shapes = {f"{shape}": stage.sample(shape, torch.float32, shape, rank) for shape in SHAPES}
        return [mixed[0], mixed, [], {}, shapes, {"α": big[0], "": torch.empty(0, device=stage.device)}, big, big[-1]]

    mine, theirs = payloads(stage.rank), payloads(peer)
    sends = [world.send_tensors(payload, peer, tag=3) for payload in mine]
    receives = [world.recv_tensors(peer, tag=3) for _ in theirs]
    results = await together(*sends, *receives)
    for number, (found, sent) in enumerate(zip(results[len(sends) :], theirs, strict=True)):
        _check_payload(stage, found, sent, f"recv_tensors of payload {number}")


@by_members(sizes=PAIR)
async def tensors_and_payloads_are_the_same_messages(stage: Stage) -> None:
    """recv_tensors takes what send sent, and recv what send_tensors sent, if it is one tensor."""
    world = await stage.join()
    for number, numel in enumerate((1, 100_000, 2_500_000)):
        sent = stage.sample((numel,), torch.float32, number)
        if stage.rank == 0:
            await together(world.send(sent, 1), world.send_tensors(sent, 1))
        else:
            target = torch.empty_like(sent)
            payload, _ = await together(world.recv_tensors(0), world.recv(target, 0))
            _check_payload(stage, payload, sent, "recv_tensors of what send sent")
            stage.check_same(target, sent, "recv of what send_tensors sent")


@by_members(sizes=PAIR)
async def memory_is_free_once_send_returns(stage: Stage) -> None:
    """When send has returned, the tensor may be changed, and the message stays what it was."""
    world = await stage.join()
    for value, numel in enumerate((1, 500, 20_000, 200_000, 3_000_000)):
        tensor = stage.full(numel, value)
        if stage.rank == 0:
            await world.send(tensor, 1, tag=value)
            tensor.fill_(666.0)
        else:
            await asyncio.sleep(0.005)  # the message is there first, or waits
            tensor.fill_(-1.0)
            await world.recv(tensor, 0, tag=value)
            stage.check_full(
                tensor, value, f"recv of {numel} float32 that the sender changed after its send had returned"
            )


@by_members(sizes=PAIR)
async def what_does_not_fit_fails_alone(stage: Stage) -> None:
    """A receive of another dtype or shape than was sent raises TensorMismatchError at the receiver, and writes nothing;
    the message stays for a receive that fits, in its place in the order.
    """
    world = await stage.join()
    base = torch.float32
    cases: list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]] = [
        ((4,), (5,), base),
        ((4,), (3,), base),
        ((4,), (2, 2), base),
        ((4,), (4,), torch.float64),
        ((4,), (4,), torch.int32),
        ((0,), (1,), base),
        ((), (1,), base),
        ((300_000,), (300_001,), base),
        ((3_000_000,), (3_000_000,), torch.int32),
    ]
    for number, (shape, offered_shape, offered_dtype) in enumerate(cases):
        sent = stage.sample(shape, base, number)
        what = f"recv into {offered_dtype}{list(offered_shape)} of {base}{list(shape)}"
        if stage.rank == 0:
            await together(world.send(sent, 1), world.send(stage.full(1, number), 1))
            continue
        offered = stage.blank(offered_shape, offered_dtype)
        await stage.must_raise(world.recv(offered, 0), mw.TensorMismatchError, what)
        stage.check_same(offered, stage.blank(offered_shape, offered_dtype), f"{what}, which failed, wrote: its tensor")
        fitting, marker = stage.blank(shape, base), stage.full(1, -1)
        if number % 2:
            await world.recv(fitting, 0)
        else:
            payload = await world.recv_tensors(0)
            stage.check(isinstance(payload, Tensor), f"recv_tensors returned {type(payload).__name__}, not one tensor")
            fitting = payload  # type: ignore[assignment]
        stage.check_same(fitting, sent, f"a receive that fits, after a {what},")
        await world.recv(marker, 0)
        stage.check_full(marker, number, "the message behind the one that did not fit is another one")


@by_members(sizes=PAIR)
async def what_cannot_be_sent_is_refused_at_once(stage: Stage) -> None:
    """What the channel cannot move, and wrong ranks, tags and devices, raise TypeError or ValueError before anything is
    sent, and disturb nothing.
    """
    world, peer = await stage.join(), 1 - stage.rank
    refused = (TypeError, ValueError)
    for dtype in MOVABLE:
        if not stage.channel.can_move(dtype):
            tensor = stage.blank((4,), dtype)
            await stage.must_raise(
                world.send(tensor, peer), refused, f"send of {dtype}, which the channel cannot move,"
            )
            await stage.must_raise(
                world.recv(tensor, peer), refused, f"recv of {dtype}, which the channel cannot move,"
            )
    fine = stage.full(4, 1)
    wrong: list[tuple[str, Any]] = [
        ("send to a rank that is not there", world.send(fine, 2)),
        ("send to itself", world.send(fine, stage.rank)),
        ("recv with a negative tag", world.recv(fine, peer, tag=-1)),
        ("send of a tensor on another device", world.send(torch.zeros(3, device="meta"), peer)),
        ("recv of a sparse tensor", world.recv(torch.eye(3).to_sparse(), peer)),
        ("send_tensors of a number", world.send_tensors(3, peer)),  # type: ignore[arg-type]
    ]
    for what, operation in wrong:
        await stage.must_raise(operation, refused, what)
    target = stage.full(1, -1)
    await together(world.send(stage.full(1, stage.rank), peer), world.recv(target, peer))
    stage.check_full(target, peer, "the first message after those that were refused is another one")


def _check_payload(stage: Stage, found: Any, sent: Any, what: str) -> None:
    stage.check(isinstance(found, type(sent)), f"{what} returned {type(found).__name__}, not {type(sent).__name__}")
    if isinstance(sent, Tensor):
        stage.check_same(found, sent, what)
        return
    keys = list(sent) if isinstance(sent, dict) else list(range(len(sent)))
    found_keys = list(found) if isinstance(found, dict) else list(range(len(found)))
    stage.check(found_keys == keys, f"{what} returned {found_keys}, sent were {keys}")
    for key in keys:
        stage.check_same(found[key], sent[key], f"{what}, part {key!r},")
