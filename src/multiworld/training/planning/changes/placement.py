"""Which member becomes which node of which pipeline: owners of a layer on different hosts, then few bytes to move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from ..arrays import Bools, Floats, Ints
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
    *,
    is_worth_moves: bool = True,
) -> tuple[tuple[Pipeline, ...], tuple[str, ...]]:
    """Return the pipelines, and the members that are left over.

    ``held``: the layers that each member has. ``layer_bytes``: what has to be moved for each layer. ``hosts``: of
    members, as far as they are known. ``is_worth_moves``: also where layers have to be moved for it, no layer has all
    of its owners on one host, if exchanges of members can prevent that: so the training survives the loss of any host.
    Among places that cost the same, the order of ``members`` is kept.
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
        _part_replicas(member_of, missing_bytes, needs, host_of, is_worth_moves=is_worth_moves)
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


def _part_replicas(member_of: Ints, missing_bytes: Floats, needs: Ints, host_of: Ints, *, is_worth_moves: bool) -> None:
    """Exchange members of two places as long as that is better: ``_Exchanges`` says what is.

    Where this ends with layers on one host alone, a second way begins with the members host by host.
    """
    unsafe = _improve(member_of, missing_bytes, needs, host_of, is_worth_moves=is_worth_moves)
    if unsafe and is_worth_moves:
        by_host = member_of[np.argsort(host_of[member_of], kind="stable")]
        if _improve(by_host, missing_bytes, needs, host_of, is_worth_moves=True) < unsafe:
            member_of[:] = by_host


def _improve(member_of: Ints, missing_bytes: Floats, needs: Ints, host_of: Ints, *, is_worth_moves: bool) -> int:
    """Change ``member_of`` until no exchange makes it better. Return how many layers have all owners on one host."""
    held = np.zeros((int(host_of.max()) + 1, needs.shape[1]), np.int64)  # [host, layer]: owners
    np.add.at(held, host_of[member_of], needs)
    goes = needs[:, None, :] > needs[None, :, :]  # of the first place's layers, those that the second does not need
    while True:
        unsafe, repeated = _changes(held, host_of[member_of], goes)
        cross = missing_bytes[member_of].T  # [place, place]: bytes that the first gets with the second one's member
        own = np.diagonal(cross)
        moved = cross + cross.T - own[:, None] - own
        if not is_worth_moves:
            unsafe = np.where(moved > 0, 0, unsafe)
        better = (unsafe < 0) | ((unsafe == 0) & ((moved < 0) | ((moved == 0) & (repeated < 0))))
        if not better.any():
            return int(_is_unsafe(held).sum())
        found = np.argwhere(better)
        keys = (repeated[better], moved[better], unsafe[better])  # the last one first
        one, other = found[np.lexsort(keys)[0]]
        change = needs[other] - needs[one]
        held[host_of[member_of[one]]] += change
        held[host_of[member_of[other]]] -= change
        member_of[[one, other]] = member_of[[other, one]]


def _changes(held: Ints, host_at: Ints, goes: Bools) -> tuple[Ints, Ints]:
    """Return what an exchange of each two places changes, [place, place]: layers that have all owners on one host, and
    owners that share a host with another one of the same layer.

    ``held``: [host, layer], owners. ``host_at``: of each place. ``goes``: [place, place, layer].
    """
    has_copies = held.sum(axis=0) > 1
    spread = (held > 0).sum(axis=0)  # [layer]: hosts
    left = held[host_at] == 1  # [place, layer]: its host has no other owner
    come = held[host_at] == 0
    fewer, more = goes & left[:, None, :], goes & come[None, :, :]
    is_one = (spread + more) - fewer == 1
    unsafe = (goes & has_copies & is_one).sum(axis=2) - (goes & has_copies & (spread == 1)).sum(axis=2)
    repeated = fewer.sum(axis=2) - more.sum(axis=2)
    elsewhere = host_at[:, None] != host_at[None, :]
    return np.where(elsewhere, unsafe + unsafe.T, 0), np.where(elsewhere, repeated + repeated.T, 0)


def _is_unsafe(held: Ints) -> Bools:
    """Return which layers have several owners, all on one host."""
    unsafe: Bools = ((held > 0).sum(axis=0) == 1) & (held.sum(axis=0) > 1)
    return unsafe


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
