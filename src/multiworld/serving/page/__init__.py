"""The live page of a deployment: its graph, its numbers and what happened, in a browser."""

from .app import PREFIX, PageApp
from .recorder import Recorder
from .server import serve_page
from .source import AskingSource, DeploymentSource, StatusSource

__all__ = ["PREFIX", "AskingSource", "DeploymentSource", "PageApp", "Recorder", "StatusSource", "serve_page"]
