"""Reads and checks guards: the conditions on input sizes under which a graph of torch.export holds. Pure."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from types import CodeType

Sizes = tuple[tuple[int, ...], ...]
"""The shape of each input, in the order of the graph."""

SIZE = re.compile(r"L\['\w+'\]\[(\d+)\]\.size\(\)\[(\d+)\]")
FIXED = re.compile(r"sizes\[\d+\]\[\d+\] == \d+")
FUNCTIONS = {"abs": abs, "float": float, "int": int, "math": math, "max": max, "min": min}
PLAIN = (
    ast.Expression,
    ast.BoolOp,
    ast.BinOp,
    ast.UnaryOp,
    ast.Compare,
    ast.Subscript,
    ast.Constant,
    ast.Call,
    ast.boolop,
    ast.operator,
    ast.unaryop,
    ast.cmpop,
    ast.expr_context,
)


def read(codes: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return torch's guards as expressions of ``sizes[input][dimension]``, and unchanged those that cannot be read.

    Guards that fix a size to one number are left out: the traced inputs carry these sizes.
    """
    readable: dict[str, None] = {}
    others: list[str] = []
    for code in codes:
        guard = SIZE.sub(r"sizes[\1][\2]", code)
        try:
            tree = ast.parse(guard.strip(), mode="eval")
        except SyntaxError:
            others.append(code)
            continue
        guard = ast.unparse(tree)
        if not all(map(_is_readable, ast.walk(tree))):
            others.append(code)
        elif not FIXED.fullmatch(guard):
            readable[guard] = None
    return list(readable), others


@lru_cache(maxsize=1024)
def broken(guards: tuple[str, ...], sizes: Sizes) -> str | None:
    """Return the first guard that does not hold. Cached: there may be many guards, and requests have few sizes."""
    return next((guard for guard in guards if not _holds(guard, sizes)), None)


def except_for_one_row(guards: Iterable[str], sizes: Sizes, with_rows: int) -> list[str]:
    """Return the guards, each with an exception for one row if it does not hold for ``sizes``, which have one row.

    torch.export assumes that each size is at least two, so it guards that products of sizes differ from 1 and each
    other. ``with_rows``: the index of an input with rows.
    """
    return [guard if _holds(guard, sizes) else f"sizes[{with_rows}][0] == 1 or ({guard})" for guard in guards]


def described(guard: str, names: Sequence[str]) -> str:
    """Return a guard as the model's author would write it. The name is empty if the payload is the tensor itself."""

    def shape(found: re.Match[str]) -> str:
        name = names[int(found[1])]
        return f"{name}.shape[{found[2]}]" if name else f"shape[{found[2]}]"

    return re.sub(r"sizes\[(\d+)\]\[(\d+)\]", shape, guard)


def _is_readable(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id == "sizes" or node.id in FUNCTIONS
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id == "math"
    return isinstance(node, PLAIN)


def _holds(guard: str, sizes: Sizes) -> bool:
    try:
        return bool(eval(_compiled(guard), {"__builtins__": {}, **FUNCTIONS, "sizes": sizes}))
    except ArithmeticError:  # the model cannot compute with these sizes either
        return False


@lru_cache(maxsize=1024)
def _compiled(guard: str) -> CodeType:
    return compile(guard, "<guard>", "eval")
