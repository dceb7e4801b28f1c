"""A deployment in a terminal: redrawn where there is one and ``rich`` is installed, plain lines everywhere else."""

from .follow import follow, watch
from .live import LiveView
from .plain import PlainView
from .view import View, choose_view

__all__ = ["LiveView", "PlainView", "View", "choose_view", "follow", "watch"]
