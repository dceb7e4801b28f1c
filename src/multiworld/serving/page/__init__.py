"""The live page of a deployment: its graph, its numbers and what happened, in a browser."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .app import PREFIX, PageApp
from .recorder import Recorder
from .source import ControllerSource, DeploymentSource, StatusSource

if TYPE_CHECKING:
    from .server import serve_page

__all__ = ["PREFIX", "ControllerSource", "DeploymentSource", "PageApp", "Recorder", "StatusSource", "serve_page"]


def __getattr__(name: str) -> Any:
    if name != "serve_page":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(".server", __name__).serve_page  # imports torch, which a terminal need not
