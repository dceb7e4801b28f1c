"""Decide which parameters form a fragment: whole blocks of the model, in fragments of about the same size. Pure."""

from __future__ import annotations

from collections.abc import Mapping


def split_into_fragments(sizes: Mapping[str, int], fragments: int) -> tuple[tuple[str, ...], ...]:
    """Return the names of each fragment, in the order of ``sizes`` (bytes or elements by parameter name).

    Parameters of one block (``layers.3.attention.weight``: block ``layers.3``) stay together; the largest block goes to
    the lightest fragment, then the next. If there are too few blocks, each parameter is a block of its own. All
    members decide alike, for names and sizes are the same on all. Raises ValueError if there are too few parameters.
    """
    if len(sizes) < fragments:
        raise ValueError(f"fragments={fragments}, but the model has {len(sizes)} parameters: choose fewer fragments")
    blocks: dict[str, list[str]] = {}
    for name in sizes:
        blocks.setdefault(block_of(name), []).append(name)
    if len(blocks) < fragments:
        blocks = {name: [name] for name in sizes}
    weights = {block: sum(sizes[name] for name in names) for block, names in blocks.items()}
    loads, chosen = [0] * fragments, dict.fromkeys(blocks, 0)
    num_blocks = [0] * fragments
    for block in sorted(blocks, key=lambda block: -weights[block]):  # stable: equal ones stay in the model's order
        lightest = min(range(fragments), key=lambda index: (loads[index], num_blocks[index]))
        chosen[block] = lightest
        loads[lightest] += weights[block]
        num_blocks[lightest] += 1
    order = {name: chosen[block] for block, names in blocks.items() for name in names}
    return tuple(tuple(name for name in sizes if order[name] == index) for index in range(fragments))


def block_of(name: str) -> str:
    """Return the part of a parameter's name up to its first index, or its module if there is none."""
    parts = name.split(".")
    for place, part in enumerate(parts[:-1]):
        if part.isdigit():
            return ".".join(parts[: place + 1])
    return ".".join(parts[:-1]) or name
