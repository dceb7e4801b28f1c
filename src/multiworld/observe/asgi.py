"""The types of the interface between an HTTP server and an application (ASGI 3)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ["App", "Message", "Receive", "Scope", "Send"]

Scope = Any  # each server has types of its own for these
Message = Any
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
