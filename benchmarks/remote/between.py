"""Tensors from node to node, and collectives of nodes, beside a world of processes that does the same."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import torch

from multiworld import WorldManager, remote
from multiworld.bench.report import Bound, Line
from multiworld.bench.samples import Pairs

from .faults import Adders

__all__ = ["all_reduced", "copied"]

COPIED = 16 * 1024 * 1024  # 64 MB of float32
REDUCED = 4 * 1024 * 1024  # 16 MB
NUM_MEMBERS = 4
ROUNDS = 15
IN_A_ROW = 5
WARM_UP = 3
JOB = "benchmark"


def copied(options: argparse.Namespace) -> list[Line]:
    with ExitStack() as stack:
        nodes = stack.enter_context(remote.local(2, num_threads=1))
        send, receive = stack.enter_context(_members(2))
        source = nodes[1].ones(COPIED)
        kept: list[Any] = []  # as the member keeps what it received last

        def ours() -> None:
            kept[:] = [source.to_node(2)]
            kept[0][-1:].fetch()

        def world() -> None:
            receive.send("receive")
            send.send("send")
            receive.recv()

        ours()
        before = nodes.statistics
        pairs = _alternated(ours, world, options.alternations * ROUNDS // 5)
        now = nodes.statistics
        fetched = now.fetched_bytes - before.fetched_bytes - 4 * (len(pairs.ours) + WARM_UP)
        through_master = now.sent_bytes - before.sent_bytes + fetched
    rates = Pairs(
        [COPIED * 4 / 1e9 / each for each in pairs.ours], [COPIED * 4 / 1e9 / each for each in pairs.reference]
    )
    return [
        Line.of_pairs(
            "64 MB from node to node, beside a world's send",
            "GB/s",
            rates,
            Bound.ratio_at_least(0.9),
            note="in new memory",
        ),
        Line(name="bytes of them through the master", unit="", value=through_master, bound=Bound.at_most(0)),
    ]


def all_reduced(options: argparse.Namespace) -> list[Line]:
    with ExitStack() as stack:
        nodes = stack.enter_context(remote.local(NUM_MEMBERS, num_threads=1))
        members = stack.enter_context(_members(NUM_MEMBERS))
        tensors = [node.zeros(REDUCED) for node in nodes.values()]

        def ours() -> None:
            for _ in range(IN_A_ROW):
                remote.all_reduce(tensors)
            for tensor in tensors:
                tensor[-1:].fetch()

        def world() -> None:
            for member in members:
                member.send("reduce")
            for member in members:
                member.recv()

        pairs = _alternated(ours, world, options.alternations * ROUNDS // 5)
    milliseconds = Pairs(
        [each * 1e3 / IN_A_ROW for each in pairs.ours], [each * 1e3 / IN_A_ROW for each in pairs.reference]
    )
    name = f"{NUM_MEMBERS} × 16 MB reduced, beside a world's all_reduce"
    return [Line.of_pairs(name, "ms", milliseconds, Bound.ratio_at_most(1.1)), *_with_a_dead_member(options)]


def _with_a_dead_member(options: argparse.Namespace) -> list[Line]:
    """Kill one of three in the middle of a collective, while a node outside of it adds."""
    took_s: list[float] = []
    wrong = unexpected = 0
    with remote.local(4, num_threads=1) as nodes:
        for _ in range(options.alternations):
            nodes.wait_alive()
            tensors = [nodes[number].ones(REDUCED) for number in (1, 2, 3)]
            remote.all_reduce(tensors)
            tensors[0][-1:].fetch()
            with Adders({4: nodes[4]}) as outsiders:
                outsiders.rate_for(0.1)
                os.kill(nodes[2].pid, signal.SIGSTOP)  # then the others are in the middle
                remote.all_reduce(tensors)
                outsiders.rate_for(0.05)
                os.kill(nodes[2].pid, signal.SIGKILL)
                killed = time.perf_counter()
                for survivor in (tensors[0], tensors[2]):
                    try:
                        survivor[-1:].fetch()
                        unexpected += 1
                    except remote.RemoteOperationError as error:
                        unexpected += "node 2 is lost" not in str(error)
                took_s.append(time.perf_counter() - killed)
                outsiders.rate_for(0.1)
            wrong += outsiders.wrong
    return [
        Line(
            name="a member killed: until all survivors' errors",
            unit="s",
            value=median(took_s),
            bound=Bound.at_most(0.5),
        ),
        Line(name="survivors without the error that names it", unit="", value=unexpected, bound=Bound.at_most(0)),
        Line(name="wrong sums of a node outside", unit="", value=wrong, bound=Bound.at_most(0)),
    ]


def _alternated(ours: Callable[[], None], world: Callable[[], None], rounds: int) -> Pairs:
    """Return the seconds that each took, in turn."""
    for _ in range(WARM_UP):
        ours()
        world()
    timed = [(_seconds(ours), _seconds(world)) for _ in range(max(rounds, 5))]
    return Pairs([one for one, _ in timed], [other for _, other in timed])


def _seconds(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


@contextmanager
def _members(count: int) -> Iterator[list[Connection]]:
    """Start the members of a world; yield a pipe to each, which takes the name of what the member is to do."""
    context, token = multiprocessing.get_context("spawn"), secrets.token_hex(32)
    with WorldManager(job=JOB, token=token) as manager:
        store = manager.serve_store("tcp://127.0.0.1:0")
        pipes = [context.Pipe() for _ in range(count)]
        processes = [
            context.Process(target=_be_member, args=(rank, count, store, token, there), daemon=True)
            for rank, (_, there) in enumerate(pipes)
        ]
        for process in processes:
            process.start()
        try:
            for here, _ in pipes:
                here.recv()
            yield [here for here, _ in pipes]
            for here, _ in pipes:
                here.send("leave")
            for process in processes:
                process.join(5)
        finally:
            for process in processes:
                process.kill()


def _be_member(rank: int, count: int, store: str, token: str, orders: Connection) -> None:
    torch.set_num_threads(1)
    with WorldManager(job=JOB, token=token) as manager:
        world = manager.blocking.join("members", rank, count, store)
        sent, reduced = torch.ones(COPIED), torch.zeros(REDUCED)
        kept = sent
        orders.send("ready")
        while (order := orders.recv()) != "leave":
            if order == "send":
                world.blocking.send(sent, 1)
            elif order == "receive":
                received = torch.empty(COPIED)
                world.blocking.recv(received, 0)
                kept = received
                orders.send(float(kept[-1]))
            else:
                for _ in range(IN_A_ROW):
                    world.blocking.all_reduce(reduced)
                orders.send(float(reduced[-1]))
