"""Reads YAML and JSON text into plain values, and remembers on which line each stands."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from ...extras import install_extra
from .problems import ConfigError, Path, Problems


@dataclass
class Document:
    """``value``: dicts, lists, texts, numbers. ``lines``: the line of each key and element, as far as it is known."""

    source: str
    value: Any = None
    lines: dict[Path, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, source: str, text: str) -> Document:
        """Raises ConfigError for text that is no YAML (no JSON, if ``source`` ends so), or says a key twice."""
        return _json(source, text) if source.endswith(".json") else _yaml(source, text)


def _json(source: str, text: str) -> Document:
    try:
        return Document(source, json.loads(text))
    except json.JSONDecodeError as error:
        raise ConfigError(source, [f"{error.lineno}: no JSON: {error.msg}"]) from None
    except RecursionError:
        raise ConfigError(source, [" nested too deeply"]) from None


def _yaml(source: str, text: str) -> Document:
    try:
        import yaml
    except ImportError:
        raise ConfigError(source, [f" YAML files need PyYAML: {install_extra('serving')}, or use JSON"]) from None
    document = Document(source)
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            raise ConfigError(source, [" the file is empty"])
        problems = Problems(source, document.lines)
        _note_lines(node, (), document.lines, problems, set())
        problems.raise_any()
        document.value = loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"{mark.line + 1}:" if mark else ""
        raise ConfigError(source, [f"{line} no YAML: {error.problem or error.context}"]) from None
    except yaml.YAMLError as error:
        raise ConfigError(source, [f" no YAML: {error}"]) from None
    except (RecursionError, ValueError) as error:  # a date that is none, for one
        raise ConfigError(source, [f" no usable YAML: {error}"]) from None
    return document


def _note_lines(node: Any, path: Path, lines: dict[Path, int], problems: Problems, seen: set[int]) -> None:
    """Walk YAML's nodes; what an alias repeats is walked once, where it was first."""
    lines.setdefault(path, node.start_mark.line + 1)
    if id(node) in seen:
        return
    seen.add(id(node))
    if node.id == "sequence":
        for index, child in enumerate(node.value):
            _note_lines(child, (*path, index), lines, problems, seen)
    elif node.id == "mapping":
        keys: set[str] = set()
        for key, child in node.value:
            name = str(key.value)
            place = (*path, name)
            lines[place] = key.start_mark.line + 1
            if name in keys:
                problems.add(place, "stands here a second time")
            keys.add(name)
            _note_lines(child, place, lines, problems, seen)
