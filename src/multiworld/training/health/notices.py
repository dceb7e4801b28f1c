"""Read the notices by which clouds and schedulers say that a host will be taken away. For ``join(notices=[...])``."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path

TIMEOUT_S = 2.0
MAX_BYTES = 65536
_NO = ("", "none", "false", "null")


class FileNotice:
    """A file that somebody writes: its first word says how many seconds are left; an empty one says nothing of it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __call__(self) -> float | None:
        try:
            words = self.path.read_text(errors="replace").split()
        except FileNotFoundError:
            return None
        try:
            return max(0.0, float(words[0])) if words else 0.0
        except ValueError:
            return 0.0


class HttpNotice:
    """A metadata service. 404, or an answer that says *none* or *false*, is no notice.

    An answer may be JSON with the time (``key``, ISO 8601) at which the host goes; any other is a notice without a
    time. ``headers`` may be a function, which is called for each question, as where a token is needed first.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = None,
        key: str = "time",
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"url={url!r}: expected http:// or https://")
        self.url = url
        self._headers, self._key, self._clock = headers, key, clock

    def __call__(self) -> float | None:
        headers = self._headers() if callable(self._headers) else self._headers or {}
        try:
            answer = _ask(urllib.request.Request(self.url, headers=dict(headers)))
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    return None
            raise
        return self._seconds_left(answer)

    def _seconds_left(self, answer: str) -> float | None:
        if answer.strip().lower() in _NO:
            return None
        try:
            when = json.loads(answer)[self._key]
            at = datetime.fromisoformat(when.replace("Z", "+00:00"))
        except (ValueError, TypeError, KeyError, AttributeError):
            return 0.0
        at = at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)
        return max(0.0, at.timestamp() - self._clock())


def ec2_spot_notice(service: str = "http://169.254.169.254") -> HttpNotice:
    """Return the notice of an EC2 spot instance: two minutes before it is taken away."""

    def headers() -> Mapping[str, str]:
        wanted = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        request = urllib.request.Request(f"{service}/latest/api/token", method="PUT", headers=wanted)
        return {"X-aws-ec2-metadata-token": _ask(request).strip()}

    return HttpNotice(f"{service}/latest/meta-data/spot/instance-action", headers=headers)


def gce_preemption_notice(service: str = "http://metadata.google.internal") -> HttpNotice:
    """Return the notice of a preemptible Compute Engine instance: 30 seconds before it is stopped."""
    return HttpNotice(f"{service}/computeMetadata/v1/instance/preempted", headers={"Metadata-Flavor": "Google"})


def _ask(request: urllib.request.Request) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # such a service is never behind a proxy
    with opener.open(request, timeout=TIMEOUT_S) as answer:
        read: bytes = answer.read(MAX_BYTES)
    return read.decode(errors="replace")
