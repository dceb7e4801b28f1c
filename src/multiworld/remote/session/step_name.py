"""The name of a command that runs a captured step: it knows the operations of the step, for an error that names one."""

from __future__ import annotations

from collections.abc import Sequence

from .origins import Origin, line_of


class StepName(str):
    """``operations``: of the step in order, each with the place that issued it in the captured block."""

    operations: Sequence[tuple[str, Origin]]

    def __new__(cls, name: str, operations: Sequence[tuple[str, Origin]]) -> StepName:
        made = super().__new__(cls, name)
        made.operations = operations
        return made

    def inside(self, call: int, line: str) -> tuple[str, str]:
        """Return name and line of one of the operations, for a replay that was issued at ``line``."""
        if call >= len(self.operations):
            return str(self), line
        operation, place = self.operations[call]
        return operation, f"{line_of(place)}, replayed at {line}"
