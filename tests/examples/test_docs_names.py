"""Names, attributes and keyword arguments that appear in the Python blocks of the documentation exist."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import textwrap
import typing
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import multiworld as mw
import multiworld.distributed
import multiworld.serving.generation
from multiworld.world.blocking_manager import BlockingManager
from tests.examples.test_docs import PAGES, code_blocks

pytestmark = pytest.mark.usefixtures("no_leaks")


@dataclass(frozen=True)
class Instance:
    """A value of which the class is known."""

    of: type


KNOWN: dict[str, Any] = {
    "mw": mw,
    "multiworld": mw,
    "torch": torch,
    "dist": multiworld.distributed,
    "manager": Instance(mw.WorldManager),
    "world": Instance(mw.World),
}
"""What a fragment means by a name that it does not define."""
NAMESPACES = (mw, mw.serving, multiworld.serving.generation, builtins, torch, torch.nn.parallel)
UNKNOWN = object()
NOT_IMPORTED = ("lightning", "multiworld.training.integrations")
"""They may not be here, take long to import, and leave threads behind; tests/process/test_training_integrations.py."""
ATTRIBUTES: dict[tuple[type, str], Any] = {(mw.WorldManager, "blocking"): Instance(BlockingManager)}
"""Of which class attributes are that a constructor sets."""


def attributes_of(cls: type) -> set[str]:
    """Return what the class and its bases annotate, and what their methods set."""
    found = set[str]()
    for each in cls.__mro__[:-1]:
        tree = ast.parse(textwrap.dedent(inspect.getsource(each)))
        attributes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
        stored = (node for node in attributes if isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self")
        found |= {node.attr for node in stored} | set(getattr(each, "__annotations__", {}))
    return found


@dataclass
class Reader(ast.NodeVisitor):
    """Follows what can be known without running the block; ``wrong`` collects what does not exist."""

    wrong: list[str] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=lambda: dict(KNOWN))

    def read(self, code: str) -> list[str]:
        tree = ast.parse("async def block():\n" + textwrap.indent(code, "    "))
        defined = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        defined |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        defined |= {node.name for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef)}
        defined |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        self.names |= dict.fromkeys(defined - {"manager", "world"}, UNKNOWN)
        self.visit(tree)
        return self.wrong

    def visit_Import(self, node: ast.Import) -> None:
        for each in node.names:
            module = self._module(each.name)
            self.names[each.asname or each.name.split(".")[0]] = (
                module if each.asname or "." not in each.name else (importlib.import_module(each.name.split(".")[0]))
            )

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module == "app":  # the program of the page itself
            self.names |= dict.fromkeys((each.name for each in node.names), UNKNOWN)
            return
        module = self._module(node.module or "")
        for each in node.names:
            if inspect.ismodule(module) and not hasattr(module, each.name):
                with suppress(ModuleNotFoundError):
                    importlib.import_module(f"{module.__name__}.{each.name}")
            self.names[each.asname or each.name] = self._attribute(module, each.name, node.module or "")

    def visit_Name(self, node: ast.Name) -> None:
        self.value_of(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.value_of(node)

    def visit_Call(self, node: ast.Call) -> None:
        self.value_of(node)
        for each in (*node.args, *(keyword.value for keyword in node.keywords)):
            self.visit(each)

    def visit_match_case(self, node: ast.match_case) -> None:
        if isinstance(node.pattern, ast.MatchClass):
            event = self.value_of(node.pattern.cls)
            for name in node.pattern.kwd_attrs:
                if isinstance(event, type) and name not in typing.get_type_hints(event):
                    self.wrong.append(f"{event.__name__} has no {name}")
        for statement in node.body:
            self.visit(statement)

    def value_of(self, node: ast.expr) -> Any:
        match node:
            case ast.Name(id=name):
                return self._named(name)
            case ast.Attribute(value=value, attr=attr):
                return self._attribute(self.value_of(value), attr, ast.unparse(value))
            case ast.Call(func=func, keywords=keywords):
                function = self.value_of(func)
                self._check_keywords(function, [each.arg for each in keywords if each.arg], ast.unparse(func))
                return Instance(function) if isinstance(function, type) and function is not super else UNKNOWN
            case _:
                self.generic_visit(node)
                return UNKNOWN

    def _named(self, name: str) -> Any:
        if name in self.names:
            return self.names[name]
        for space in NAMESPACES:
            if hasattr(space, name):
                return getattr(space, name)
        if name[0].isupper() and not name.isupper():
            self.wrong.append(f"no {name}")
        return UNKNOWN

    def _module(self, name: str) -> Any:
        if name.startswith(NOT_IMPORTED):
            return UNKNOWN
        try:
            return importlib.import_module(name)
        except ImportError as error:
            self.wrong.append(str(error))
            return UNKNOWN

    def _attribute(self, of: Any, name: str, shown: str) -> Any:
        if of is UNKNOWN:
            return UNKNOWN
        owner = of.of if isinstance(of, Instance) else of
        if not hasattr(owner, name):
            if isinstance(of, Instance) and name in attributes_of(of.of):
                return ATTRIBUTES.get((of.of, name), UNKNOWN)
            self.wrong.append(f"{shown} has no {name}")
            return UNKNOWN
        found = inspect.getattr_static(owner, name) if isinstance(of, Instance) else getattr(owner, name)
        if isinstance(found, property) and found.fget is not None:
            returned = typing.get_type_hints(found.fget).get("return")
            return Instance(returned) if inspect.isclass(returned) else UNKNOWN
        return found if callable(found) or inspect.ismodule(found) else UNKNOWN

    def _check_keywords(self, function: Any, keywords: list[str], shown: str) -> None:
        if function is UNKNOWN or isinstance(function, Instance) or not keywords:
            return
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):  # of C
            return
        if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            return
        self.wrong += [f"{shown} takes no {name}" for name in keywords if name not in parameters]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_the_blocks_of_a_page_name_exists(page: Path) -> None:
    assert [wrong for _, code in code_blocks(page) for wrong in Reader().read(code)] == []


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("mw.WorldManger()", "mw has no WorldManger"),
        ("await manager.join('a', wrld_size=2)", "manager.join takes no wrld_size"),
        ("manager.blocking.jon('a')", "manager.blocking has no jon"),
        ("from multiworld.testing import Cru", "multiworld.testing has no Cru"),
        ("import multiworld.nothing", "No module named 'multiworld.nothing'"),
        ("Stag('a', f)", "no Stag"),
    ],
)
def test_what_does_not_exist_is_found(code: str, wrong: str) -> None:
    assert Reader().read(code) == [wrong]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_program_with_a_main_calls_it(page: Path) -> None:
    for _, code in code_blocks(page):
        if "def main(" in code and code.startswith(("import", "from")):
            assert "asyncio.run(main(" in code, code
