"""The output of workers: read through pipes, whole lines with a prefix on the console, bytes as they were in files."""

from .prefix import prefix
from .pump import LogPump, WorkerStreams

__all__ = ["LogPump", "WorkerStreams", "prefix"]
