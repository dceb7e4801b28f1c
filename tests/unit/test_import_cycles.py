"""Which modules import each other in a circle, and which names stay in their folder: read from the sources alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

import multiworld

ROOT = Path(multiworld.__file__).parent
MAY_HAVE_CYCLES = ("testing.channel_conformance.",)
"""Folders whose modules may import each other in a circle."""


@lru_cache(maxsize=1)
def sources() -> dict[str, ast.Module]:
    """Return what each module says, by its name below ``multiworld``; a package goes by its own name."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_bytes())
    return found


def is_package(module: str) -> bool:
    return ROOT.joinpath(*module.split("."), "__init__.py").is_file()


def from_imports(module: str) -> Iterator[tuple[str, ast.ImportFrom]]:
    """Yield each ``from … import`` of names of this package, with the module that it names; also those in functions."""
    for node in ast.walk(sources()[module]):
        if not isinstance(node, ast.ImportFrom):
            continue
        if node.level:
            parts = module.split(".") if module else []
            above = parts[: len(parts) - node.level + is_package(module)]
            yield ".".join([*above, *(node.module or "").split(".")]).strip("."), node
        elif node.module and node.module.split(".")[0] == ROOT.name:
            yield node.module.partition(".")[2], node


def imports_of(module: str) -> set[str]:
    """Return the modules that it imports, for type checkers and in functions, too."""
    found = set()
    for target, node in from_imports(module):
        for alias in node.names:
            name = f"{target}.{alias.name}".strip(".")
            found.add(name if name in sources() else target)
    return (found & sources().keys()) - {module, ""}


def cycles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in imports[module]:
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            at = stack.index(module)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for module in imports:
        if module not in index:
            visit(module)
    return found


def test_a_circle_of_imports_is_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set(), "e": {"a"}}) == [["a", "b", "c"]]


def test_no_modules_import_each_other_in_a_circle() -> None:
    found = cycles({module: imports_of(module) for module in sources() if module})
    assert [each for each in found if not any(all(m.startswith(may) for m in each) for may in MAY_HAVE_CYCLES)] == []


def test_private_names_are_imported_in_their_own_folder_alone() -> None:
    abroad = []
    for module in sources():
        folder = module if is_package(module) else module.rpartition(".")[0]
        for target, node in from_imports(module):
            home = target if is_package(target) else target.rpartition(".")[0]
            if home == folder:
                continue
            abroad += [f"{module}: {target}.{each.name}" for each in node.names if is_private(each.name)]
    assert abroad == []


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_serving_imports_nothing_of_the_launcher() -> None:
    serving = [module for module in sources() if module.startswith("serving.")]
    assert [f"{each}: {m}" for each in serving for m in imports_of(each) if m.startswith("elastic")] == []
