"""Reduce-scatter and all-gather around a ring of ranks: the fewest bytes to and from each, for large tensors.

Segments go round in chunks. Each is handed on as soon as it is there: receiving, arithmetic and sending overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from .chunks import ReceiveWindow, all_of, compute_in_pieces, num_chunks, rotating_buffers, size_bytes, split_evenly
from .port import Port
from .reduction import AnyReduceOp, combine, copy, finalize
from .tuning import Tuning


async def ring_all_reduce(port: Port, tensor: Tensor, op: AnyReduceOp, tuning: Tuning) -> None:
    """Reduce a flat tensor in place: each rank finishes one segment, then all segments go round."""
    segments = split_evenly(tensor, port.size)
    own = segments[port.rank]
    await ring_reduce_scatter(port, own, segments, op, tuning)
    await ring_all_gather(port, segments, own, tuning)


async def ring_reduce_scatter(
    port: Port, output: Tensor, inputs: Sequence[Tensor], op: AnyReduceOp, tuning: Tuning
) -> None:
    """Set ``output`` to the reduction of all ranks' ``inputs[rank]``. Only it is changed; it may be ``inputs[rank]``.

    In step ``s``, rank ``r`` receives what its predecessor has combined of segment ``r - s - 2``, adds its own, hands
    it on; the last step ends at segment ``r``. Each element is computed once, so all ranks agree on every bit.

    A chunk is combined in the buffer that it came in, which is free again when the successor has it. The successor
    takes it one segment of chunks later in its own order: with fewer buffers than a segment has chunks, all ranks would
    wait for each other.
    """
    rank, size = port.rank, port.size
    successor, predecessor = (rank + 1) % size, (rank - 1) % size
    per_segment = num_chunks(max(map(size_bytes, inputs)), tuning)
    outputs = split_evenly(output, per_segment)
    arriving = [inputs[(rank - step - 2) % size] for step in range(size - 1)]
    mine = [piece for segment in arriving for piece in split_evenly(segment, per_segment)]
    num_buffers = per_segment + tuning.window
    window = ReceiveWindow(port, predecessor, rotating_buffers(mine, num_buffers), ahead=tuning.window)
    sends = [port.send(piece, successor) for piece in split_evenly(inputs[predecessor], per_segment)]
    last_step = len(mine) - per_segment
    for index, piece in enumerate(mine):
        arrived = await window.next()
        if index >= last_step:
            into = outputs[index - last_step]
            await port.compute(partial(_finish, arrived, piece, into, op, size), size_bytes(piece))
            continue
        await port.compute(partial(combine, arrived, piece, arrived, op), size_bytes(piece))
        send = port.send(arrived, successor)
        window.hold(index + num_buffers, send)
        sends.append(send)
    await all_of(sends)


async def ring_all_gather(port: Port, outputs: Sequence[Tensor], own: Tensor, tuning: Tuning) -> None:
    """Fill all ``outputs``, of which the own one may be ``own`` itself.

    The others come straight from the wire; what came from the predecessor goes on to the successor. A share of ``own``
    is copied before each chunk is waited for.
    """
    rank, size = port.rank, port.size
    successor, predecessor = (rank + 1) % size, (rank - 1) % size
    per_segment = num_chunks(max(map(size_bytes, outputs)), tuning) if size > 2 else 1  # two ranks forward nothing
    arriving = [outputs[(rank - step - 1) % size] for step in range(size - 1)]
    pieces = [piece for segment in arriving for piece in split_evenly(segment, per_segment)]
    window = ReceiveWindow(port, predecessor, pieces, ahead=tuning.window)
    sends = [port.send(piece, successor) for piece in split_evenly(own, per_segment)]
    shares = zip(split_evenly(own, len(pieces)), split_evenly(outputs[rank], len(pieces)), strict=True)
    for index, (source, target) in enumerate(shares):
        if source.data_ptr() != target.data_ptr():
            await compute_in_pieces(port, copy, source, target)
        arrived = await window.next()
        if index < len(pieces) - per_segment:
            sends.append(port.send(arrived, successor))
    await all_of(sends)


def _finish(arrived: Tensor, own: Tensor, output: Tensor, op: AnyReduceOp, num_ranks: int) -> None:
    combine(arrived, own, output, op)
    finalize(output, op, num_ranks)
