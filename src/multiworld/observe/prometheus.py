"""Families of metrics, and how they are written for Prometheus, sent as JSON, and joined over gateways. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Kind = Literal["counter", "gauge", "histogram", "summary"]
Row = tuple[str, Mapping[str, str], float]
"""What follows the family's name (``_sum``, say, or nothing), the labels, and the value under them."""


@dataclass(frozen=True)
class Family:
    """All samples of one name, without ``multiworld_``."""

    name: str
    kind: Kind
    help: str
    rows: Sequence[Row]

    def labelled(self, label: str, value: str) -> Family:
        """Return it with one more label on each sample, the first."""
        return replace(self, rows=[(suffix, {label: value, **labels}, number) for suffix, labels, number in self.rows])


def joined(groups: Iterable[Iterable[Family]]) -> list[Family]:
    """Return the families of several gateways, each once, in the order in which they come first."""
    found: dict[str, Family] = {}
    for family in (family for group in groups for family in group):
        known = found.get(family.name)
        found[family.name] = family if known is None else replace(known, rows=[*known.rows, *family.rows])
    return list(found.values())


def families_text(families: Iterable[Family]) -> str:
    """Return them in Prometheus' text format."""
    return "".join(map(_text, families))


def to_json(families: Iterable[Family]) -> list[list[Any]]:
    return [
        [
            family.name,
            family.kind,
            family.help,
            [[suffix, dict(labels), value] for suffix, labels, value in family.rows],
        ]
        for family in families
    ]


def from_json(values: Any) -> list[Family]:
    """Return what ``to_json`` returned. ValueError, TypeError, KeyError or the like: it is something else."""
    return [
        Family(str(name), kind, str(text), [(str(row[0]), dict(row[1]), float(row[2])) for row in rows])
        for name, kind, text, rows in values
    ]


def _text(family: Family) -> str:
    name = f"multiworld_{family.name}"
    description = family.help.replace("\\", "\\\\").replace("\n", "\\n")
    lines = [f"# HELP {name} {description}", f"# TYPE {name} {family.kind}"]
    for suffix, labels, value in family.rows:
        text = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
        lines.append(f"{name}{suffix}{{{text}}} {_number(value)}" if text else f"{name}{suffix} {_number(value)}")
    return "\n".join(lines) + "\n"


def _escaped(label: str) -> str:
    return str(label).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    text = repr(float(value))
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(text, text.removesuffix(".0"))
