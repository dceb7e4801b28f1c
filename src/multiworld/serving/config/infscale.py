"""Reads a job file of InfScale (github.com/cisco-open/infscale) as a pipeline.

Its workers name ranges of layers: those of one range are the replicas of one stage, the server is the gateway. The
model is cut anew into as many stages, by measured cost, because InfScale's layer numbers are those of its own sharder.
One key is ours: ``example``, as in ``cut`` of a file of our own format. A model of the user's own needs it; for a model
of Hugging Face an example is made up.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..graph import Batch
from .document import Document
from .pipeline_file import ATTRIBUTE, CutPlan, PipelineFile
from .problems import Problems, did_you_mean
from .sections import Section

POLICIES = {"rr": "round-robin", "random": "random", "shortest": "shortest-queue", "static": "shortest-queue"}
NOT_HONORED = {
    "dataset": "requests come from clients, not from a data set",
    "job_id": "a deployment is known by its name",
    "nfaults": "any number of losses is survived while a replica of each stage is left or replaced",
    "recover": "what is lost is always replaced",
    "recovery": "what is lost is always replaced, as often as that is needed",
    "idle_cache_cleanup": "stages of a model that is cut keep no caches between requests",
    "force_terminate": "replicas are asked to end first, and are ended by force when the time for that is over",
    "reqgen_config": "requests come from clients, not from a generator",
    "warmup": "requests come from clients, not from a generator",
    "max_count": "requests come from clients, not from a generator",
    "auto_config": "the number of replicas is what the file says; give a stage bounds to have it scaled",
    "rank_map": "ranks are given by the worlds",
}
PORTS = "ports are chosen when the deployment starts"
WORLD_NOT_HONORED = {
    "port": PORTS,
    "data_port": PORTS,
    "ctrl_port": PORTS,
    "recover": NOT_HONORED["recover"],
    "recover_count": NOT_HONORED["recover"],
    "conflict_count": PORTS,
}
WORKER_NOT_HONORED = {
    "addr": "worlds in flow_graph say which host a worker is on",
    "port": PORTS,
    "deploy": "every worker of the file is started",
    "recover": NOT_HONORED["recover"],
}
Range = tuple[int, int]


@dataclass
class _Worker:
    name: str
    layers: Range | None
    """First and last layer; None for the server."""
    device: str
    count: int
    section: Section


def is_job(value: Any) -> bool:
    """Return whether a file's content looks like a job of InfScale."""
    return isinstance(value, Mapping) and "workers" in value and "stages" not in value


def read_job(document: Document) -> PipelineFile:
    """Return the pipeline of a job file; what it asks for and does not get is in ``warnings``. Raises ConfigError."""
    problems = Problems(document.source, document.lines)
    section = Section(document.value, (), problems)
    warnings: list[str] = []
    name, model = section.need("name", str, "job"), section.need("model", str, "")
    example = _example(section, model)
    policy = _policy(section, warnings)
    rows, inflight = section.take("micro_batch_size", int, 8), section.take("max_inflight", int, 0)
    if inflight > 0:
        warnings.append(f"max_inflight: more than {inflight} requests at once are refused (429), and do not wait")
    batch = section.build(Batch, max_size=rows)
    workers = [worker for sub in section.subs("workers") if (worker := _worker(sub, warnings)) is not None]
    ranges = _ranges(section, workers)
    problems.raise_any()
    hosts = _flow_graph(section, workers, ranges, warnings)
    _tell_not_honored(section, "", NOT_HONORED, warnings)
    section.finish()
    problems.raise_any()
    stages = [[worker for worker in workers if worker.layers == layers] for layers in ranges]
    warnings.append(
        f"workers: layers {', '.join(map(_layers, ranges))} are taken as {len(stages)} stages of equal measured cost"
    )
    plan = CutPlan(
        model=model,
        num_stages=len(stages),
        example=example,
        replicas=tuple(sum(worker.count for worker in stage) for stage in stages),
        batch=batch,
        devices=tuple(_device(stage, warnings) for stage in stages),
        hosts=tuple(_hosts(stage, hosts) for stage in stages),
    )
    return PipelineFile(
        path=document.source,
        name=(re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-_.") or "job")[:63],
        cut=plan,
        policy=policy,
        gateways=max(sum(worker.layers is None for worker in workers), 1),
        autoscaling=None,
        max_inflight=inflight if inflight > 0 else None,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _example(section: Section, model: str) -> str | None:
    """Return where the example is found; None where one is made up."""
    example: str | None = section.take("example", str)
    if example is not None and not ATTRIBUTE.fullmatch(example):
        section.problem("example", f"expected 'package.module:attribute', got {example!r}")
    elif section.raw("example") is None and ":" in model:
        package = model.partition(":")[0]
        section.problem(
            "example",
            f"is missing: the model {model!r} is not one of Hugging Face. Name a request's payload, with which the "
            f"model is measured and cut: 'example: \"{package}:example\"' (a tensor, a list or dict of tensors, or a "
            "function that returns one)",
        )
    return example


def _tell_not_honored(section: Section, place: str, reasons: Mapping[str, str], warnings: list[str]) -> None:
    warnings += [f"{place}{key}: {reason}" for key, reason in reasons.items() if section.raw(key) is not None]


def _policy(section: Section, warnings: list[str]) -> str:
    policy = section.take("fwd_policy", str, "random")
    if policy not in POLICIES:
        section.problem("fwd_policy", f"unknown policy {policy!r}, {did_you_mean(policy, POLICIES)}")
    if policy == "static":
        warnings.append("fwd_policy: 'static' (always the first) would leave replicas idle; 'shortest-queue' is used")
    return POLICIES.get(policy, "random")


def _worker(section: Section, warnings: list[str]) -> _Worker | None:
    name, device = section.need("id", str, ""), section.take("device", str, "cpu") or "cpu"
    server = section.take("is_server", bool, False)
    stage = section.sub("stage")
    start, end, count = -1, -1, 1
    if stage is not None:
        start, end = stage.need("start", int, 0), stage.need("end", int, 0)
        count = stage.take("num_replicas", int, 1)
        server = stage.take("is_server", bool, False) or server
        stage.finish(also=("id",))
    _tell_not_honored(section, "workers: ", WORKER_NOT_HONORED, warnings)
    section.finish()
    if server or start < 0:
        return _Worker(name, None, device, 1, section)
    if end < start:
        section.problem("stage", f"ends at layer {end}, before it starts at {start}")
        return None
    if count < 1:
        section.problem("stage", f"expected num_replicas from 1, got {count}")
        return None
    return _Worker(name, (start, end), device, count, section)


def _ranges(section: Section, workers: list[_Worker]) -> list[Range]:
    """Return the stages' layers in order; they must follow each other without a gap."""
    names = [worker.name for worker in workers]
    for worker in workers:
        if worker.name and names.count(worker.name) > 1:
            worker.section.problem("id", f"two workers are called {worker.name!r}")
    ranges = sorted({worker.layers for worker in workers if worker.layers is not None})
    if not ranges:
        section.problem("workers", "no worker has layers: expected stage.start and stage.end from 0")
    for before, after in pairwise(ranges):
        if after[0] != before[1] + 1:
            section.problem(
                "workers",
                f"layers {_layers(after)} do not follow {_layers(before)}: stages of one model have no gap or overlap",
            )
    return ranges


def _flow_graph(
    section: Section, workers: list[_Worker], ranges: list[Range], warnings: list[str]
) -> dict[str, set[str]]:
    """Check who receives from whom, and return the hosts that each worker's worlds name."""
    graph = section.sub("flow_graph")
    if graph is None:
        return {}
    layers = {worker.name: worker.layers for worker in workers}
    hosts: dict[str, set[str]] = {}
    backends: set[str] = set()
    edges: set[tuple[str, str]] = set()
    for name in layers:
        for world in graph.subs(name):
            hosts.setdefault(name, set()).add(world.take("addr", str, ""))
            backends.add(world.take("backend", str, ""))
            for peer in world.take("peers", list[str], []):
                if peer not in layers:
                    world.problem("peers", f"unknown worker {peer!r}, {did_you_mean(peer, layers)}")
                else:
                    edges.add((peer, name))
            _tell_not_honored(world, "flow_graph: ", WORLD_NOT_HONORED, warnings)
            world.finish(also=("name",))
    graph.finish()
    loops = [edge for edge in edges if not _follows(layers[edge[0]], layers[edge[1]], ranges)]
    _warn_of_loops(graph, loops, layers, ranges, warnings)
    if len(edges) - len(loops) < _all_edges(list(layers.values()), ranges):
        warnings.append("flow_graph: each replica is connected with every replica of the next stage")
    if backends - {""}:
        warnings.append(f"flow_graph: backend {', '.join(sorted(backends - {''}))}: the channel is chosen per edge")
    return hosts


def _follows(sender: Range | None, receiver: Range | None, ranges: list[Range]) -> bool:
    """Return whether a receiver is next after a sender. The server, None, is before the first and after the last."""
    if sender is None:
        return receiver is not None and receiver == ranges[0]
    if receiver is None:
        return sender == ranges[-1]
    return ranges.index(receiver) == ranges.index(sender) + 1


def _warn_of_loops(
    graph: Section,
    loops: list[tuple[str, str]],
    layers: Mapping[str, Range | None],
    ranges: list[Range],
    warnings: list[str],
) -> None:
    """Edges back from the last stage to the first are InfScale's token loop; others make no chain."""
    for sender, receiver in sorted(loops):
        if layers[sender] == ranges[-1] and layers[receiver] == ranges[0]:
            warnings.append(f"flow_graph: {sender} to {receiver}: tokens are not generated in a loop between stages")
        else:
            graph.problem(receiver, f"receives from {sender!r}, which does not come just before it in the model")


def _all_edges(workers: list[Range | None], ranges: list[Range]) -> int:
    return sum(_follows(sender, receiver, ranges) for sender in workers for receiver in workers)


def _device(stage: list[_Worker], warnings: list[str]) -> str:
    devices = sorted({re.sub(r"^gpu", "cuda", worker.device) for worker in stage})
    if len(devices) > 1:
        warnings.append(f"workers: {', '.join(devices)} of layers {_layers(stage[0].layers)}: all use {devices[0]}")
    return devices[0]


def _hosts(stage: list[_Worker], hosts: Mapping[str, set[str]]) -> tuple[str, ...]:
    """Return where a stage may run: the addresses of its workers, none if they are this host's own."""
    named = set().union(*(hosts.get(worker.name, set()) for worker in stage)) - {""}
    return () if any(map(_is_local, named)) else tuple(sorted(named))


def _is_local(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _layers(layers: Range | None) -> str:
    return "none" if layers is None else f"{layers[0]}-{layers[1]}"
