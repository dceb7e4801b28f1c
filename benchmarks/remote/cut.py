"""One of four nodes on hosts of their own is cut off: the master's error, and the throughput of the others."""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import time
from statistics import median

import torch

from multiworld import remote
from multiworld.bench.report import Bound, Line
from multiworld.testing import Host, Network, hosts
from multiworld.wire.endpoints.token import TOKEN_VARIABLE

from .faults import LEASE_S, Adders

__all__ = ["cut_off"]

PORT = 29500
READY_S = 60.0


def cut_off(options: argparse.Namespace) -> list[Line]:
    """Needs root: the hosts are network namespaces."""
    reason = hosts.available()
    if reason is not None:
        return [Line.not_measured("network cut until the error", reason)]
    took_s, rates, wrong = [], [], 0
    for _ in range(options.alternations):
        with Network(5) as network:
            one_s, rate, one_wrong = _cut_once(network.hosts[0], network.hosts[1:], options.seconds)
        took_s.append(one_s)
        rates.append(rate)
        wrong += one_wrong
    return [
        Line(name="network cut until the error", unit="s", value=median(took_s), bound=Bound.at_most(LEASE_S + 0.5)),
        Line(name="throughput of the others after it, over before", unit="", value=median(rates)),
        Line(name="nodes with a wrong sum", unit="", value=wrong, bound=Bound.at_most(0)),
    ]


def _cut_once(host: Host, node_hosts: tuple[Host, ...], seconds: float) -> tuple[float, float, int]:
    """Return how long the error took, the others' throughput after it over that before, and wrong sums."""
    environment = {**os.environ, TOKEN_VARIABLE: secrets.token_hex(32)}
    cli = (
        sys.executable,
        "-m",
        "multiworld",
        "nodes",
        "serve",
        "--port",
        str(PORT),
    )
    for each in node_hosts:
        node = each.popen(*cli, "--host", each.address, env=environment, stdout=subprocess.PIPE)
        assert node.stdout is not None
        node.stdout.readline()  # it listens
    addresses = ",".join(f"tcp://{each.address}:{PORT}" for each in node_hosts)
    command = (sys.executable, "-m", __name__, addresses, str(seconds))
    master = host.popen(*command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert master.stdin is not None
    assert master.stdout is not None
    if master.stdout.readline() != b"ready\n":
        raise RuntimeError(f"the master ended with {master.wait()}")
    cut_at = node_hosts[0].cut()
    master.stdin.write(b"cut\n")
    master.stdin.flush()
    failed_at, rate, wrong = master.stdout.readline().split()
    master.wait(READY_S)
    return float(failed_at) - cut_at, float(rate), int(wrong)


def main(addresses: str, seconds: float) -> None:
    """The master: it says ``ready``, reads a line once node 1 is cut off, and tells what it measured."""
    torch.set_num_threads(1)
    nodes = remote.connect(addresses, lease_s=LEASE_S, num_threads=1)
    x = nodes[1].zeros(20, 20)
    nodes[1].synchronize()
    with Adders({number: nodes[number] for number in (2, 3, 4)}) as others:
        others.rate_for(seconds / 2)
        before = others.rate_for(seconds)
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            x.fetch()
            failed_at = float("inf")
        except remote.NodeDeadError:
            failed_at = time.monotonic()
        rate = others.rate_for(seconds) / before
    print(failed_at, rate, others.wrong, flush=True)
    nodes.close(drop=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
