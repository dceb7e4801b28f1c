"""Simulated hosts: network namespaces on one switch, with cables to pull, one-way cuts and packet loss. Needs root.

Nothing appears in the machine's own network: the switch is a namespace too. CLOCK_MONOTONIC is shared, so that times on
different simulated hosts compare. Their processes share one pid space and one ``/proc``, unlike those of real hosts.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Literal

from ..errors import MultiworldError
from .deadlines import scaled

NAMESPACES = Path("/run/netns")
NAME = re.compile(r"mw(\d+)n\d+(h\d+|s|probe)")
SUBNET = "10.77.0"
MAX_HOSTS = 250
COMMAND_TIMEOUT_S = 20.0
_numbers = itertools.count()


class HostError(MultiworldError):
    """A command on a simulated host, or one that shapes its network, failed; ``output`` is what it said."""

    def __init__(self, command: str, output: str) -> None:
        super().__init__(command, output)
        self.command, self.output = command, output

    def __str__(self) -> str:
        return f"{self.command}: {self.output}"


@functools.cache
def available() -> str | None:
    """Return ``None`` when simulated hosts work here, else the reason why not, for a skip. Tried once per process."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program, package in (("ip", "iproute2"), ("iptables", "iptables")):
        if shutil.which(program) is None:
            return f"the program {program} is not installed or not on PATH (Debian: apt-get install {package})"
    probe = f"mw{os.getpid()}n{next(_numbers)}probe"
    try:
        _ip("netns", "add", probe)
        try:
            _ip("-n", probe, "link", "add", "eth0", "type", "veth", "peer", "name", "eth1")
            _ip("-n", probe, "link", "add", "switch", "type", "bridge")
            _iptables(probe, "-A", "INPUT", *_lose_rule(1.0))
        finally:
            _ip("netns", "delete", probe)
    except HostError as error:
        return f"network namespaces do not work here: {error}"
    return None


class Host:
    """One simulated host: ``netns`` is its namespace's name, ``address`` its IPv4 address on the network's switch."""

    def __init__(self, network: Network, index: int, netns: str) -> None:
        self.index, self.netns, self.address = index, netns, f"{SUBNET}.{index + 1}"
        self._network = network
        self._port = f"port{index}"

    def __repr__(self) -> str:
        return f"<Host {self.index} {self.address} netns={self.netns}>"

    # ---- faults; each returns the monotonic time just before it

    def cut(self) -> float:
        """Pull the cable out of the switch: the host loses its carrier, and no packet passes in either direction."""
        return self._set_port("down")

    def restore(self) -> float:
        """Put the cable back. Rules of ``drop`` and ``lose`` stay."""
        return self._set_port("up")

    def drop(self, to: Host, direction: Literal["out", "in", "both"] = "out") -> float:
        """Lose all packets from this host to ``to`` (``out``), from ``to`` to this host (``in``), or both, silently.

        They vanish where they arrive, so that the sending kernel learns nothing, as on a broken path.
        """
        at = time.monotonic()
        if direction in ("out", "both"):
            to._add_rule("-s", self.address, "-j", "DROP")
        if direction in ("in", "both"):
            self._add_rule("-s", to.address, "-j", "DROP")
        return at

    def lose(self, percent: float) -> float:
        """Lose that share of the packets that arrive here from other hosts, each by its own random draw."""
        at = time.monotonic()
        self._add_rule("-i", "eth0", *_lose_rule(percent))
        return at

    def heal(self) -> float:
        """Take away every rule that ``drop`` and ``lose`` put on this host (``drop`` outwards puts it on the other)."""
        at = time.monotonic()
        _iptables(self.netns, "-F", "INPUT")
        return at

    # ---- programs on the host

    def run(self, *command: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Run a command on the host and return what it printed. Raises ``HostError`` when it fails."""
        return _run("ip", "netns", "exec", self.netns, *command, timeout_s=timeout_s)

    def popen(self, *command: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start a program on the host, ``options`` as for ``subprocess.Popen``. Closing the network kills it."""
        process: subprocess.Popen[bytes] = subprocess.Popen(["ip", "netns", "exec", self.netns, *command], **options)
        self._network._processes.append(process)
        return process

    def _add_rule(self, *rule: str) -> None:
        _iptables(self.netns, "-A", "INPUT", *rule)

    def _set_port(self, state: str) -> float:
        at = time.monotonic()
        _ip("-n", self._network._switch, "link", "set", self._port, state)
        return at


class Network:
    """``num_hosts`` simulated hosts that reach one another. Leaving the ``with`` block removes all of them.

    Workers on them (``WorkerGroup.start(..., netns=host.netns)``) belong in an inner ``with`` block, as they keep the
    namespace in use. What a killed program left behind is removed when the next network is made.
    """

    def __init__(self, num_hosts: int) -> None:
        if not 1 <= num_hosts <= MAX_HOSTS:
            raise ValueError(f"num_hosts is {num_hosts}; a network has 1 to {MAX_HOSTS} hosts")
        prefix = f"mw{os.getpid()}n{next(_numbers)}"
        self._switch = f"{prefix}s"
        self._processes: list[subprocess.Popen[bytes]] = []
        self.hosts = tuple(Host(self, index, f"{prefix}h{index}") for index in range(num_hosts))

    def __enter__(self) -> Network:
        _remove_stale()
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def lose(self, percent: float) -> float:
        """Lose that share of all packets between the hosts."""
        at = time.monotonic()
        for host in self.hosts:
            host.lose(percent)
        return at

    def heal(self) -> float:
        """Undo every fault: cables in, rules gone."""
        at = time.monotonic()
        for host in self.hosts:
            host.restore()
            host.heal()
        return at

    def close(self) -> None:
        """Kill what ``popen`` started and remove hosts and switch. Idempotent."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self._processes.clear()
        for netns in (*(host.netns for host in self.hosts), self._switch):
            if (NAMESPACES / netns).exists():
                _ip("netns", "delete", netns)

    def _build(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "switch", "up")
        for host in self.hosts:
            _ip("netns", "add", host.netns)
            _ip("-n", host.netns, "link", "set", "lo", "up")
            peer = ("peer", "name", host._port, "netns", self._switch)
            _ip("-n", host.netns, "link", "add", "eth0", "type", "veth", *peer)
            _ip("-n", host.netns, "address", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", host.netns, "link", "set", "eth0", "up")
            _ip("-n", self._switch, "link", "set", host._port, "master", "switch", "up")


def _lose_rule(percent: float) -> tuple[str, ...]:
    if not 0 < percent <= 100:
        raise ValueError(f"percent is {percent}; it must be above 0 and at most 100")
    return ("-m", "statistic", "--mode", "random", "--probability", f"{percent / 100:.6f}", "-j", "DROP")


def _remove_stale() -> None:
    for path in NAMESPACES.glob("mw*"):
        match = NAME.fullmatch(path.name)
        if match is not None and not Path(f"/proc/{match[1]}").exists():
            _ip("netns", "delete", path.name)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _iptables(netns: str, *arguments: str) -> None:
    _run("ip", "netns", "exec", netns, "iptables", "-w", *arguments)


def _run(*command: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=scaled(timeout_s),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise HostError(" ".join(command), f"no end within {error.timeout:g} s") from None
    if done.returncode != 0:
        raise HostError(" ".join(command), f"exit status {done.returncode}: {done.stdout.strip()}")
    return done.stdout
