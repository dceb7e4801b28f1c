"""The pages of reference: every command, and every name that a module exports."""

from __future__ import annotations

import importlib
import re

import pytest

import multiworld
from multiworld import errors
from multiworld.cli.main import COMMANDS
from tools import reference_pages


def test_the_page_of_commands_has_the_help_of_each() -> None:
    page = reference_pages.command_line()
    for command in COMMANDS:
        assert f"## multiworld {command}\n" in page
    assert "### multiworld serve scale\n\n```text\nusage: multiworld serve scale" in page
    assert "### multiworld serve watch\n" in page


@pytest.mark.parametrize("name", reference_pages.API)
def test_what_a_page_of_the_api_names_exists(name: str) -> None:
    paths = re.findall(r"^::: (.*)$", "\n".join(reference_pages.api_page(name)), re.MULTILINE)
    assert paths
    for path in paths:
        module, _, attribute = path.rpartition(".")
        assert getattr(importlib.import_module(module), attribute).__doc__, f"{path} has no docstring"


def test_every_error_is_on_the_page_of_errors() -> None:
    page = "\n".join(reference_pages.api_page("errors"))
    assert all(f"::: multiworld.errors.{name}\n" in page for name in errors.__all__)


def test_what_is_hidden_from_users_exists() -> None:
    for path, hidden in reference_pages.NOT_FOR_USERS.items():
        names = dir(getattr(multiworld, path.rpartition(".")[2]))
        for pattern in hidden.split("|"):
            assert any(re.fullmatch(pattern, name) for name in names), f"{path} has no {pattern}"
