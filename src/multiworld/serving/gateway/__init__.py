"""The HTTP side of serving: a gateway that asks whatever it is given, within bounds, and says what went wrong."""

from __future__ import annotations

from .gateway import Gateway
from .options import GatewayOptions
from .served import Metric, Payload, Served, StreamingServed

__all__ = ["Gateway", "GatewayOptions", "Metric", "Payload", "Served", "StreamingServed"]
