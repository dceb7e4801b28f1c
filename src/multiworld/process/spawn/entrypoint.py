"""Which program a worker runs. Pure: values."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class EntrypointKind(enum.Enum):
    """How ``Entrypoint.target`` is started."""

    SCRIPT = "script"  # a Python file
    MODULE = "module"  # as ``python -m`` does
    COMMAND = "command"  # any executable: ``--no-python``
    FUNCTION = "function"  # "module:function", in a forked process only; its arguments are texts in JSON


@dataclass(frozen=True, kw_only=True)
class Entrypoint:
    """The program that every worker runs."""

    kind: EntrypointKind
    target: str
    arguments: tuple[str, ...] = ()
    python: str | None = None
    """Another interpreter than the launcher's own, as ``PYTHON_EXEC`` names it: such a worker starts cold."""
    named: str | None = None
    """What people are told to have failed, and a function finds as ``sys.argv``, if not ``target``."""
