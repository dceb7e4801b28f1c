"""Decide what stands before each line that a worker writes to the console. Pure."""

from __future__ import annotations

import string

from ..job.assignment import Assignment


def prefix(assignment: Assignment, *, role: str, template: str | None = None, hostname: str = "") -> str:
    """Return ``"[role rank generation] "``, or what the template says; nothing for the only worker of a job.

    An empty template stands for no prefix.
    """
    if template is None:
        return f"[{role} {assignment.rank} g{assignment.generation}] " if assignment.world_size > 1 else ""
    return string.Template(template).safe_substitute(
        role_name=role,
        rank=assignment.rank,
        local_rank=assignment.local_rank,
        generation=assignment.generation,
        hostname=hostname,
    )
