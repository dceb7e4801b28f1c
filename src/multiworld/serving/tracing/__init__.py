"""Traces of single requests, for OpenTelemetry: what is noted on their way, which spans that makes, who sends them."""

from .settings import Tracing

__all__ = ["Tracing"]
