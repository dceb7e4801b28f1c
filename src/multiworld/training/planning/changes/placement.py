"""Which member becomes which node of which pipeline: the fewest bytes to move, then replicas on different hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from ..arrays import Floats, Ints
from ..plan import Pipeline
from ..template import Template


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A pipeline before members have places in it."""

    template: Template
    num_micro_batches: int


def place(
    shapes: Sequence[Shape],
    members: Sequence[str],
    held: Mapping[str, frozenset[int]],
    layer_bytes: Sequence[int],
    hosts: Mapping[str, str],
) -> tuple[tuple[Pipeline, ...], tuple[str, ...]]:
    """Return the pipelines, and the members that are left over.

    ``held``: the layers that each member has. ``layer_bytes``: what has to be moved for each layer. ``hosts``: of
    members, as far as they are known. Among places that cost the same, the order of ``members`` is kept.
    """
    needs = np.array([_needs(each.template, node) for each in shapes for node in range(each.template.num_nodes)])
    has = np.zeros((len(members), needs.shape[1]), np.int64)
    for row, member in enumerate(members):
        has[row, list(held.get(member, ()))] = 1
    missing_bytes = (1 - has) @ (needs * np.array(layer_bytes, np.float64)).T  # [member, place]
    member_of = _assigned(missing_bytes)
    if len({hosts.get(each, each) for each in members}) < len(members):
        names = {name: index for index, name in enumerate(sorted({hosts.get(each, each) for each in members}))}
        host_of = np.array([names[hosts.get(each, each)] for each in members])
        _part_replicas(member_of, missing_bytes, needs, host_of)
    return _pipelines(shapes, [members[each] for each in member_of]), _rest(members, member_of)


def _needs(template: Template, node: int) -> Ints:
    layers = np.zeros(template.stages[-1].end, np.int64)
    for stage in template.stages:
        if stage.node == node:
            layers[stage.first : stage.end] = 1
    return layers


def _assigned(missing_bytes: Floats) -> Ints:
    """Return the member's index for each place."""
    num_members, num_places = missing_bytes.shape
    away = np.arange(num_members)[:, None] - np.arange(num_places)
    order = away**2 * (0.5 / (num_members + 1) ** 3)  # in sum less than one byte
    rows, columns = linear_sum_assignment(missing_bytes + order)
    member_of = np.empty(num_places, np.int64)
    member_of[columns] = rows
    return member_of


def _part_replicas(member_of: Ints, missing_bytes: Floats, needs: Ints, host_of: Ints) -> None:
    """Exchange members of two places, at no cost, as long as fewer owners of a layer are then on one host."""
    held = np.zeros((int(host_of.max()) + 1, needs.shape[1]), np.int64)  # [host, layer]: owners
    np.add.at(held, host_of[member_of], needs)
    places = range(len(member_of))
    improved = True
    while improved and (held > 1).any():
        improved = False
        for one in places:
            for other in range(one + 1, len(member_of)):
                a, b = member_of[one], member_of[other]
                hosts = [host_of[a], host_of[b]]
                now, then = (
                    missing_bytes[a, one] + missing_bytes[b, other],
                    missing_bytes[b, one] + missing_bytes[a, other],
                )
                if hosts[0] == hosts[1] or then > now:
                    continue
                change = needs[other] - needs[one]
                after = held[hosts] + np.array([change, -change])
                if _repeated(after) < _repeated(held[hosts]):
                    held[hosts] = after
                    member_of[one], member_of[other] = b, a
                    improved = True


def _repeated(held: Ints) -> int:
    return int(np.maximum(held - 1, 0).sum())


def _pipelines(shapes: Sequence[Shape], placed: Sequence[str]) -> tuple[Pipeline, ...]:
    pipelines, begin = [], 0
    for each in shapes:
        end = begin + each.template.num_nodes
        pipelines.append(
            Pipeline(
                template=each.template,
                members=tuple(placed[begin:end]),
                num_micro_batches=each.num_micro_batches,
            )
        )
        begin = end
    return tuple(pipelines)


def _rest(members: Sequence[str], member_of: Ints) -> tuple[str, ...]:
    used = set(member_of.tolist())
    return tuple(each for index, each in enumerate(members) if index not in used)
