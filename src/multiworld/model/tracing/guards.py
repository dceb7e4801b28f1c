"""The conditions on its inputs' sizes under which a model was followed by torch.export: read, and checked. Pure."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from types import CodeType

__all__ = ["broken", "described", "except_for_one_row", "read"]

Sizes = tuple[tuple[int, ...], ...]
"""Of each input, in the order of the graph."""

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
    """Return torch's guards as expressions of ``sizes[input][dimension]``, and as they are those that are none.

    Sizes that have to be one number are left out: the traced inputs tell them.
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
    """Return the first guard that does not hold. Remembered: there may be many, and requests are of few sizes."""
    return next((guard for guard in guards if not _holds(guard, sizes)), None)


def except_for_one_row(guards: Iterable[str], sizes: Sizes, with_rows: int) -> list[str]:
    """Return guards that hold for these sizes, of one row: those that do not get an exception for one row.

    torch.export takes each size for two at least, and so guards that products of sizes differ from 1 and each other.
    """
    return [guard if _holds(guard, sizes) else f"sizes[{with_rows}][0] == 1 or ({guard})" for guard in guards]


def described(guard: str, names: Sequence[str]) -> str:
    """Return a guard as its model's author would write it; the name is empty where the request is the tensor."""

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
    except ArithmeticError:  # of sizes with which the model cannot compute either
        return False


@lru_cache(maxsize=1024)
def _compiled(guard: str) -> CodeType:
    return compile(guard, "<guard>", "eval")
