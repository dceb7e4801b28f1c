"""One process that a host is to start, and in which order processes are asked to end. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ...wire.messages import Json

PROGRAM = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
MAX_NAME = 128
FIRST, MIDDLE, LAST = 0, 1, 2
"""Phases."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """Start ``program``, ``"module:function"``, as the process of ``member``; it is called with ``arguments``, a dict.

    ``arguments`` must be JSON. ``env`` is added to the host process's environment; what Python, the C library or torch
    read when they are loaded has no effect, because they are loaded already. ``threads``: with how many torch computes.
    ``keep``: started again, with a back-off, whenever it ends and nobody ordered it, unless its status says that this
    is in vain (``exit_status``). ``takes_token``: the host puts its own token among the arguments, so that no order
    carries it. At the end of the host members are asked to end in the order of ``phase``: gateways (0), which finish
    what is open, before replicas (1), before the controller (2). Raises ValueError or TypeError.
    """

    member: str
    program: str
    arguments: Mapping[str, Json] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    keep: bool = False
    takes_token: bool = False
    phase: int = -1
    """By default as the member's name tells: ``gateway-…``, ``controller``, or any other."""

    def __post_init__(self) -> None:
        if not isinstance(self.member, str) or not self.member.isprintable() or not 0 < len(self.member) <= MAX_NAME:
            raise ValueError(f"a member's name has 1 to {MAX_NAME} printable characters, got {self.member!r}")
        if not isinstance(self.program, str) or not PROGRAM.fullmatch(self.program):
            raise ValueError(f"member {self.member!r}: program must be 'module:function', got {self.program!r}")
        if not isinstance(self.threads, int) or isinstance(self.threads, bool) or self.threads < 1:
            raise ValueError(f"member {self.member!r}: threads must be a number from 1, got {self.threads!r}")
        if not all(isinstance(text, str) for pair in self.env.items() for text in pair):
            raise TypeError(f"member {self.member!r}: env must map names to texts, got {dict(self.env)!r}")
        if self.phase < 0:
            object.__setattr__(self, "phase", _phase_of(self.member))

    def with_token(self, token: str) -> Order:
        """Return the order of a program that is given the token, if it takes one."""
        return replace(self, arguments={**self.arguments, "token": token}) if self.takes_token else self


def _phase_of(member: str) -> int:
    if member.startswith("gateway-"):
        return FIRST
    return LAST if member == "controller" else MIDDLE
