"""Functions that this node declared: it calls these for a master, and no others."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import MultiworldError
from ..protocol.calls import DeclaredCall

Function = Callable[..., Any]


class CallRefusedError(MultiworldError):
    """The node does not call this function (``reason``)."""

    def __init__(self, function: str, reason: str) -> None:
        super().__init__(function, reason)
        self.function, self.reason = function, reason

    def __str__(self) -> str:
        return f"{self.function}: {self.reason}"


class Functions:
    """What this node declared. A module is imported when its first function is called, or by ``check``."""

    def __init__(self, declared: Mapping[str, DeclaredCall]) -> None:
        self.declared = declared
        self._found: dict[str, Function] = {}

    def check(self) -> None:
        """Import all. Raises CallRefusedError."""
        for name in self.declared:
            self.find(name)

    def find(self, name: str) -> Function:
        """Return the function ``module:name``. Raises CallRefusedError."""
        function = self._found.get(name)
        if function is None:
            if name not in self.declared:
                known = ", ".join(self.declared) or "none"
                raise CallRefusedError(name, f"the node did not declare it (declared: {known})")
            function = self._found[name] = _imported(name)
        return function


def _imported(name: str) -> Function:
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise CallRefusedError(name, f"the node has no such function: {error}") from error
    if not callable(function):
        raise CallRefusedError(name, "this is no function")
    return function  # type: ignore[no-any-return]
