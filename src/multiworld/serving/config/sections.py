"""Takes typed values out of a file's nested dicts; what is missing, unknown or of a wrong type is noted. Pure."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from .problems import Path, Problems, did_you_mean

T = TypeVar("T")
NAMES: dict[Any, str] = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


class Section:
    """One mapping of a file. Ask for each key by its type, then call ``finish``."""

    def __init__(self, value: Any, path: Path, problems: Problems) -> None:
        self.path, self.problems = path, problems
        self._asked: set[str] = set()
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            problems.add(path, f"expected keys and values, got {_described(value)}")
            value = {}
        self._value: Mapping[str, Any] = value

    def __contains__(self, key: str) -> bool:
        return key in self._value

    def take(self, key: str, expected: Any, default: Any = None) -> Any:
        """Return a value, or the default if the key is missing or null, or its value does not fit the type."""
        self._asked.add(key)
        value = self._value.get(key)
        if value is None:
            return default
        if not fits(value, expected):
            self.problem(key, f"expected {_named(expected)}, got {_described(value)}")
            return default
        return value

    def need(self, key: str, expected: Any, default: Any) -> Any:
        """Return a value that must be there; if it is not, that is noted, and the default returned."""
        if self._value.get(key) is None:
            self._asked.add(key)
            self.problem(key, f"is missing: expected {_named(expected)}")
            return default
        return self.take(key, expected, default)

    def raw(self, key: str) -> Any:
        self._asked.add(key)
        return self._value.get(key)

    def sub(self, key: str) -> Section | None:
        """Return the mapping under a key, None if there is none."""
        value = self.raw(key)
        return None if value is None else Section(value, (*self.path, key), self.problems)

    def subs(self, key: str) -> list[Section]:
        """Return the mappings in the list under a key."""
        return [
            Section(value, (*self.path, key, index), self.problems)
            for index, value in enumerate(self.take(key, list, []))
        ]

    def make(self, cls: type[T], **given: Any) -> T | None:
        """Return a dataclass with this mapping as its fields, or None where that is not possible."""
        hints = get_type_hints(cls)
        fields = [field.name for field in dataclasses.fields(cls) if field.name not in given]  # type: ignore[arg-type]
        values = {name: self.take(name, hints[name]) for name in fields}
        self.finish()
        return self.build(cls, **given, **{name: value for name, value in values.items() if value is not None})

    def build(self, cls: type[T], *args: Any, **values: Any) -> T | None:
        """Call a class; what it says about its arguments is a problem of this mapping."""
        try:
            return cls(*args, **values)
        except (TypeError, ValueError) as error:
            self.problem(None, str(error))
            return None

    def problem(self, key: str | None, text: str) -> None:
        self.problems.add(self.path if key is None else (*self.path, key), text)

    def finish(self, also: Iterable[str] = ()) -> None:
        """Note the keys that nobody asked for; ``also`` are allowed too."""
        allowed = self._asked | set(also)
        for key in self._value:
            if key not in allowed:
                self.problem(key, f"unknown key, {did_you_mean(key, allowed)}")


def fits(value: Any, expected: Any) -> bool:
    """Return whether a value from a file is of a type, as it is written in an annotation."""
    if expected is Any:
        return True
    origin, args = get_origin(expected), get_args(expected)
    if origin in (Union, types.UnionType):
        return any(fits(value, arg) for arg in args)
    if origin is Literal:
        return value in args
    if origin in (list, tuple):
        return isinstance(value, list) and all(fits(item, args[0]) for item in value)
    if expected is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if expected is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if expected is type(None):
        return value is None
    return isinstance(value, expected)


def _named(expected: Any) -> str:
    origin, args = get_origin(expected), get_args(expected)
    if origin in (Union, types.UnionType):
        return " or ".join(_named(arg) for arg in args if arg is not type(None))
    if origin is Literal:
        return " or ".join(map(repr, args))
    if origin in (list, tuple):
        return f"a list of {_named(args[0]).removeprefix('a ')}s"
    return NAMES.get(expected, {list: "a list", dict: "keys and values"}.get(expected, str(expected)))


def _described(value: Any) -> str:
    if isinstance(value, Mapping):
        return "keys and values"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
