"""Decide which version of each stage's weights a request was executed with, from what replicas noted on it. Pure.

A replica notes its version, unless it is the first: so requests of a deployment that was never updated carry nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..flow.context import RequestContext, Versions
from ..graph import INPUT, Graph

FIRST = 1
"""The weights that a deployment begins with."""


def with_version(weights: Versions, stage: str, version: int) -> Versions:
    """Return the notes on a request that a replica of that version has executed."""
    return {**weights, stage: (version,)} if version != FIRST else weights


def merged_weights(graph: Graph, parts: Sequence[tuple[str, RequestContext]]) -> Versions:
    """Return the notes on a request whose parts come from these stages, or from INPUT.

    A stage that several parts went through, one of them noted and another not, was executed in the first version too.
    """
    if not any(context.weights for _, context in parts):
        return {}
    found: dict[str, set[int]] = {}
    for source, context in parts:
        for stage in _passed(graph, source):
            found.setdefault(stage, set()).update(context.weights.get(stage, (FIRST,)))
    return {stage: tuple(sorted(numbers)) for stage, numbers in found.items() if numbers != {FIRST}}


def versions_of(graph: Graph, noted: Versions) -> Versions:
    """Return the versions of all stages."""
    return {stage: noted.get(stage, (FIRST,)) for stage in graph.order}


def joined(one: Versions, other: Versions) -> Versions:
    """Return the versions of what two requests were executed with together."""
    stages = dict.fromkeys([*one, *other])
    return {stage: tuple(sorted({*one.get(stage, ()), *other.get(stage, ())})) for stage in stages}


def shown(versions: Versions) -> str:
    """Return ``stage=version`` for each stage, separated by commas; several versions joined by ``+``."""
    return ",".join(f"{stage}={'+'.join(map(str, numbers))}" for stage, numbers in versions.items())


def _passed(graph: Graph, source: str) -> set[str]:
    """Return the stages that what comes from ``source`` went through."""
    passed = {source}
    for stage in reversed(graph.order):
        if stage in passed:
            passed.update(graph.inputs(stage))
    return passed - {INPUT}
