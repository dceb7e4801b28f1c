"""Reads Prometheus' text format, and checks what its own linter checks."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

SAMPLE = re.compile(
    r'(?P<name>[a-z_][a-z0-9_]*)(\{(?P<labels>([a-z_]+="(\\.|[^"\\\n])*",?)*)\})? (?P<value>-?[0-9.e+-]+|[+-]Inf|NaN)'
)
LABEL = re.compile(r'([a-z_]+)="')
PARTS = {"counter": [""], "gauge": [""], "summary": ["", "_sum", "_count"], "histogram": ["_bucket", "_sum", "_count"]}
RESERVED = {"le": "histogram", "quantile": "summary"}
UNITS = ("_ms", "_milliseconds", "_us", "_microseconds", "_minutes", "_hours", "_kb", "_kilobytes", "_mb", "_megabytes")


def checked_samples(text: str) -> dict[str, float]:
    """Return all samples, by name and labels; AssertionError for a text that breaks a rule."""
    kinds: dict[str, str] = {}
    found: dict[str, float] = {}
    described = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            _, _, described, help_ = line.split(" ", 3)
            assert help_.strip(), line
            assert described not in kinds, f"{described} comes twice"
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == described, line
            kinds[name] = kind
            assert (kind == "counter") == name.endswith("_total"), line
            assert not name.endswith(("_sum", "_count", "_bucket")), line
            assert not name.removesuffix("_total").endswith(UNITS), f"{name} has no base unit"
        else:
            matched = SAMPLE.fullmatch(line)
            assert matched is not None, line
            kind = kinds[described]
            assert matched["name"] in [described + part for part in PARTS[kind]], f"{line} is amid {described}"
            labels = LABEL.findall(matched["labels"] or "")
            assert len(set(labels)) == len(labels), line
            for label in labels:
                assert not label.startswith("__"), line
                assert RESERVED.get(label, kind) == kind, line
            key = line.rpartition(" ")[0]
            assert key not in found, line
            found[key] = float(matched["value"])
    assert text.endswith("\n")
    assert all(name.startswith("multiworld_") for name in kinds)
    return found


def check_with_promtool(text: str) -> None:
    """Skip the test where there is no promtool."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
