"""The notices of clouds and files, from a service on loopback."""

from __future__ import annotations

import threading
import urllib.error
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from multiworld.training.health.notices import FileNotice, HttpNotice, ec2_spot_notice, gce_preemption_notice

AT = 1_700_000_000.0  # 2023-11-14T22:13:20Z


class Service:
    """A metadata service: what it answers by (method, path), and the headers that it was sent."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], tuple[int, str]] = {}
        self.headers: dict[tuple[str, str], dict[str, str]] = {}
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                key = (self.command, self.path)
                service.headers[key] = {name.lower(): value for name, value in self.headers.items()}
                status, body = service.answers.get(key, (404, "not found"))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            do_PUT = do_GET  # noqa: N815

            def log_message(self, *args: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.close()


def test_a_file_is_a_notice_once_it_is_there(tmp_path: Path) -> None:
    notice = FileNotice(tmp_path / "leave")
    assert notice() is None
    for text, seconds in (("", 0.0), ("90\n", 90.0), ("maintenance at noon", 0.0), ("-3", 0.0)):
        notice.path.write_text(text)
        assert notice() == seconds


def test_an_ec2_spot_instance_gets_its_notice_with_a_token(service: Service) -> None:
    notice = ec2_spot_notice(service.url)
    action = ("GET", "/latest/meta-data/spot/instance-action")
    service.answers["PUT", "/latest/api/token"] = (200, "secret\n")
    assert notice() is None
    service.answers[action] = (200, '{"action": "terminate", "time": "2023-11-14T22:15:20Z"}')
    notice = HttpNotice(notice.url, headers={"X-aws-ec2-metadata-token": "secret"}, clock=lambda: AT)
    assert notice() == 120.0
    assert service.headers[action]["x-aws-ec2-metadata-token"] == "secret"


def test_a_gce_instance_gets_its_notice(service: Service) -> None:
    notice = gce_preemption_notice(service.url)
    path = ("GET", "/computeMetadata/v1/instance/preempted")
    service.answers[path] = (200, "FALSE")
    assert notice() is None
    service.answers[path] = (200, "TRUE")
    assert notice() == 0.0
    assert service.headers[path]["metadata-flavor"] == "Google"


def test_an_answer_without_a_time_is_a_notice_and_a_time_in_the_past_is_now(service: Service) -> None:
    notice = HttpNotice(f"{service.url}/x", key="at", clock=lambda: AT)
    for body, seconds in (("[]", 0.0), ('{"at": 5}', 0.0), ('{"at": "2023-11-14T22:00:00"}', 0.0), ("null", None)):
        service.answers["GET", "/x"] = (200, body)
        assert notice() == seconds


def test_a_service_that_fails_is_no_notice_but_an_error(service: Service) -> None:
    service.answers["GET", "/x"] = (500, "oops")
    with pytest.raises(urllib.error.HTTPError):
        HttpNotice(f"{service.url}/x")()


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="ftp://x"):
        HttpNotice("ftp://x")
