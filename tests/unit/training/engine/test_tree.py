"""The canonical sum: the same tree whoever computes its leaves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiworld.training.engine.tree import Node, Summation, nodes_of, root_of, sum_up


def text_of(leaves: list[int], num_leaves: int) -> dict[Node, str]:
    """Return the expressions that a member with these leaves holds."""
    values: dict[Node, str] = {}

    def combine(parent: Node, left: Node, right: Node) -> None:
        values[parent] = f"({values.pop(left)}+{values.pop(right)})"

    def rename(parent: Node, child: Node) -> None:
        values[parent] = values.pop(child)

    summation = Summation(num_leaves)
    for leaf in leaves:
        values[0, leaf] = str(leaf)
        summation.add(leaf, combine, rename)
    assert set(values) == summation.nodes
    return values


def canonical(num_leaves: int) -> str:
    level = [str(leaf) for leaf in range(num_leaves)]
    while len(level) > 1:
        pairs = [level[number : number + 2] for number in range(0, len(level), 2)]
        level = [f"({pair[0]}+{pair[1]})" if len(pair) == 2 else pair[0] for pair in pairs]
    return level[0]


def test_one_member_holds_the_root() -> None:
    assert text_of([0, 1, 2, 3, 4], 5) == {root_of(5): "(((0+1)+(2+3))+4)"}


def test_a_single_micro_batch_is_the_root() -> None:
    assert root_of(1) == (0, 0)
    assert text_of([0], 1) == {(0, 0): "0"}


def test_leaves_that_are_no_neighbours_stay_apart() -> None:
    assert nodes_of([1, 2], 4) == [(0, 1), (0, 2)]


@given(st.data())
def test_any_share_out_gives_the_same_sum(data: st.DataObject) -> None:
    num_leaves = data.draw(st.integers(1, 40))
    owners = data.draw(st.lists(st.integers(0, 4), min_size=num_leaves, max_size=num_leaves))
    order = data.draw(st.permutations(range(num_leaves)))
    values: dict[Node, str] = {}
    for member in range(5):
        leaves = [leaf for leaf in order if owners[leaf] == member]
        own = text_of(leaves, num_leaves)
        assert sorted(own) == nodes_of(leaves, num_leaves)
        values.update(own)
    assert sum_up(values, num_leaves, lambda left, right: f"({left}+{right})") == canonical(num_leaves)


def test_a_micro_batch_that_nobody_has_is_an_error() -> None:
    with pytest.raises(ValueError, match="do not hold each of 4 micro-batches once"):
        sum_up(text_of([0, 1, 3], 4), 4, lambda left, right: f"({left}+{right})")
