"""An authenticated control link between two processes: typed messages, calls that are answered, and redial."""

from .control_link import Call, CallRefusedError, ControlLink, LinkLostError, as_json, on_event_loop
from .redial import ControlHello, RedialedLink

__all__ = [
    "Call",
    "CallRefusedError",
    "ControlHello",
    "ControlLink",
    "LinkLostError",
    "RedialedLink",
    "as_json",
    "on_event_loop",
]
