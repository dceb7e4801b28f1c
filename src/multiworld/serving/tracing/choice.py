"""Decide what is traced by what was asked for on the command line and what the environment says. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit

from .settings import TRACES_PATH, Tracing

ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
URL_OPTION, RATIO_OPTION = "--trace", "--trace-ratio"


def chosen_tracing(url: str | None, ratio: float | None, endpoint: str) -> Tracing | None:
    """Return what is traced, and where it goes; None: nothing.

    ``url`` and ``ratio``: the options, None for those that were not given. ``endpoint``: what the variable of
    OpenTelemetry says, which many an environment sets for all programs: it tells where traces go, and asks for none, so
    without an option those requests alone are traced whose callers do. Raises ValueError that names the option or the
    variable.
    """
    if url is None and not endpoint:
        if ratio is not None:
            raise ValueError(f"{RATIO_OPTION} needs {URL_OPTION} URL, or {ENDPOINT_VARIABLE} in the environment")
        return None
    if ratio is None:
        ratio = 0.0 if url is None else 1.0
    return Tracing(url=_collector(url, endpoint), ratio=_share(ratio))


def _collector(url: str | None, endpoint: str) -> str:
    name, value = (ENDPOINT_VARIABLE, endpoint) if url is None else (URL_OPTION, url)
    try:
        Tracing(url=value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return value if url is not None else _below(value)


def _share(ratio: float) -> float:
    if not 0 <= ratio <= 1:
        raise ValueError(f"{RATIO_OPTION} must lie between 0 and 1, got {ratio!r}")
    return ratio


def _below(endpoint: str) -> str:
    """The variable names what comes before the path of each signal, also where that has a path itself."""
    has_path = bool(urlsplit(endpoint).path.strip("/"))
    return f"{endpoint.rstrip('/')}{TRACES_PATH}" if has_path else endpoint
