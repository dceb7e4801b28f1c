"""The canonical sum of micro-batches: one binary tree, wherever its leaves are computed. Pure.

Floating-point sums depend on their order. In ``exact`` mode the gradient of a step is the sum over this tree:
micro-batch ``i`` is leaf ``(0, i)``; node ``(level, index)`` is the sum of ``(level - 1, 2 * index)`` and ``(level - 1,
2 * index + 1)``, in that order. Where the right one has no leaf, the node is the left one. A member sums up whole
subtrees of what it has computed by itself, and the members exchange only the roots of these. So the result has the same
bits for any number of members, and after any failure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

Node = tuple[int, int]
T = TypeVar("T")


def _has_leaf(node: Node, num_leaves: int) -> bool:
    level, index = node
    return (index << level) < num_leaves


def root_of(num_leaves: int) -> Node:
    """Return the node that is the sum of all leaves."""
    level = 0
    while (1 << level) < num_leaves:
        level += 1
    return level, 0


def merge(node: Node, have: Collection[Node], num_leaves: int) -> tuple[Node, Node | None, Node] | None:
    """Return (parent, its left, its right) if both children are there now that ``node`` is.

    The right one is None if it has no leaf; None in all if the sibling is still missing, or ``node`` is the root.
    """
    if node == root_of(num_leaves):
        return None
    level, index = node
    sibling = (level, index ^ 1)
    parent = (level + 1, index >> 1)
    if not _has_leaf(sibling, num_leaves):
        return parent, None, node
    if sibling not in have:
        return None
    left, right = (node, sibling) if index % 2 == 0 else (sibling, node)
    return parent, left, right


class Summation:
    """Which nodes are there, as leaves come in any order. The shell adds the values."""

    def __init__(self, num_leaves: int) -> None:
        self.num_leaves = num_leaves
        self.nodes: set[Node] = set()

    def add(self, leaf: int, combine: Callable[[Node, Node, Node], None], rename: Callable[[Node, Node], None]) -> None:
        """Add a leaf. See ``add_node``."""
        self.add_node((0, leaf), combine, rename)

    def add_node(
        self, node: Node, combine: Callable[[Node, Node, Node], None], rename: Callable[[Node, Node], None]
    ) -> None:
        """Add a node whose value the caller holds under it.

        ``combine(parent, left, right)``: the value of the parent is left + right; both are not needed any more.
        ``rename(parent, child)``: the parent's value is the child's.
        """
        self.nodes.add(node)
        while (step := merge(node, self.nodes, self.num_leaves)) is not None:
            parent, left, right = step
            if left is None:
                rename(parent, right)
                self.nodes.discard(right)
            else:
                combine(parent, left, right)
                self.nodes.discard(left)
                self.nodes.discard(right)
            self.nodes.add(parent)
            node = parent


def nodes_of(leaves: Iterable[int], num_leaves: int) -> list[Node]:
    """Return the subtrees that a member with these leaves holds, in a fixed order."""
    summation = Summation(num_leaves)
    for leaf in leaves:
        summation.add(leaf, lambda parent, left, right: None, lambda parent, child: None)
    return sorted(summation.nodes)


def sum_up(values: dict[Node, T], num_leaves: int, add: Callable[[T, T], T]) -> T:
    """Return the root's value from those of subtrees that hold every leaf once. Raises ValueError if they do not."""
    values = dict(values)
    pending = sorted(values)
    while pending:
        node = pending.pop(0)
        if node not in values:
            continue
        step = merge(node, values.keys(), num_leaves)
        if step is None:
            continue
        parent, left, right = step
        right_value = values.pop(right)
        values[parent] = right_value if left is None else add(values.pop(left), right_value)
        pending.append(parent)
    root = root_of(num_leaves)
    if set(values) != {root}:
        raise ValueError(f"the subtrees {sorted(values)} do not hold each of {num_leaves} micro-batches once")
    return values[root]
