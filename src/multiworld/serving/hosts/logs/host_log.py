"""What the host process itself has to say goes where the output of its members goes, and waits for no reader either."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from .output import Outputs


@contextmanager
def logging_to(outputs: Outputs) -> Iterator[None]:
    """Show all log records there instead of wherever they went. A blocked terminal would hold up the process else."""
    root = logging.getLogger()
    before = root.handlers[:]
    root.handlers[:] = [_ConsoleHandler(outputs)]
    try:
        yield
    finally:
        root.handlers[:] = before


class _ConsoleHandler(logging.Handler):
    def __init__(self, outputs: Outputs) -> None:
        super().__init__()
        self._outputs = outputs

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._outputs.note(self.format(record))
        except Exception:
            self.handleError(record)
