"""The output of workers: read through pipes, whole lines with a prefix on the console, bytes as they were in files."""

from .prefix import prefix
from .pump import LAST_LINES, LogPump, WorkerStreams

__all__ = ["LAST_LINES", "LogPump", "WorkerStreams", "prefix"]
