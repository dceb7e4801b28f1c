"""An authenticated control link between two processes: typed messages, calls that are answered, and redial."""

from .blocking import BlockingLinks, wait_for
from .control_link import Call, CallRefusedError, ControlLink, LinkLostError, as_json, on_event_loop
from .redial import RedialedLink

__all__ = [
    "BlockingLinks",
    "Call",
    "CallRefusedError",
    "ControlLink",
    "LinkLostError",
    "RedialedLink",
    "as_json",
    "on_event_loop",
    "wait_for",
]
