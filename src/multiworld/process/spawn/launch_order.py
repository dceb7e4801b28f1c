"""One worker to be started: what the agent tells the process that becomes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from ...wire.messages import from_json, to_json
from .entrypoint import Entrypoint, EntrypointKind

READ_AT_START = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_")
READ_AT_IMPORT = ("TORCH_LOGS", "TORCH_CPP_LOG_LEVEL", "TORCH_TRACE")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One worker to be started. ``env`` is its whole environment."""

    entrypoint: Entrypoint
    arguments: tuple[str, ...]
    """Instead of the entrypoint's, which may have placeholders."""
    env: Mapping[str, str]
    cwd: str | None
    """None: that of the fork server."""
    warm: bool
    """Fork it and run the program in that interpreter, instead of starting one."""
    reads_stdin: bool = True
    """Whether it inherits the standard input of the agent; else its input is empty."""
    numa: tuple[str, int] | None = None
    """A value of ``torch.numa.binding.AffinityMode``, and the index of the device whose node the worker is bound to."""
    set_up: str | None = None
    """``"module:function"``, called with the descriptors passed to a warm worker, before the program starts."""

    def can_be_warm(self, server_env: Mapping[str, str]) -> bool:
        """Whether a process forked from one with that environment can be this worker."""
        entrypoint = self.entrypoint
        if entrypoint.kind is EntrypointKind.FUNCTION:  # it has to do with the interpreter that there is
            return True
        if not self.warm or entrypoint.kind is EntrypointKind.COMMAND or entrypoint.python is not None:
            return False
        return suits_interpreter(server_env, self.env)

    def to_bytes(self) -> bytes:
        """Return what ``from_bytes`` takes. Any text of the operating system passes, UTF-8 or not."""
        return json.dumps(to_json(self)).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Launch:
        return from_json(cls, json.loads(content))


def suits_interpreter(server_env: Mapping[str, str], env: Mapping[str, str]) -> bool:
    """Whether an interpreter started in one environment is as good as one started in the other.

    Variables that Python, the C library or torch read once, when they start, must be the same.
    """
    differing = {name for name in {*server_env, *env} if server_env.get(name) != env.get(name)}
    differing.discard("PYTHONUNBUFFERED")  # workers are unbuffered anyway
    if "OMP_NUM_THREADS" in env:  # a worker sets it; that it is not set, it cannot
        differing.discard("OMP_NUM_THREADS")
    return not any(name.startswith(READ_AT_START) or name in READ_AT_IMPORT for name in differing)
