"""The interleaved schedule: each rank has several stages, so that the pipeline fills sooner (Narayanan et al. 2021)."""

from __future__ import annotations

from ..operations import Kind, Operation


def interleaved(num_stages: int, num_ranks: int, num_micro_batches: int) -> tuple[tuple[Operation, ...], ...]:
    """Return the order of each rank. Raises ValueError unless ``num_ranks`` divides ``num_stages``.

    Megatron-LM's order wants a multiple of ``num_ranks`` micro-batches. For other counts we make that of the next
    multiple and leave out what is too much: operations depend on those of the same micro-batch only, so what
    remains is free of cycles, too.
    """
    if num_stages % num_ranks:
        raise ValueError(f"{num_stages} stages cannot be interleaved over {num_ranks} ranks: expected a multiple")
    chunks, groups = num_stages // num_ranks, -(-num_micro_batches // num_ranks)
    return tuple(
        tuple(each for each in _whole(rank, num_ranks, chunks, groups) if each.micro_batch < num_micro_batches)
        for rank in range(num_ranks)
    )


def _whole(rank: int, num_ranks: int, chunks: int, groups: int) -> list[Operation]:
    places = [
        (chunk, group * num_ranks + place)
        for group in range(groups)
        for chunk in range(chunks)
        for place in range(num_ranks)
    ]
    forwards = [Operation(Kind.FORWARD, chunk * num_ranks + rank, micro_batch) for chunk, micro_batch in places]
    backwards = [
        Operation(Kind.BACKWARD, (chunks - 1 - chunk) * num_ranks + rank, micro_batch) for chunk, micro_batch in places
    ]
    ahead = min(len(places), 2 * (num_ranks - rank - 1) + (chunks - 1) * num_ranks)
    order = forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        order += (forward, backward)
    return order + backwards[len(places) - ahead :]
