"""What a read-only site answers, and the head of each answer."""

from __future__ import annotations

from collections.abc import Iterator

from multiworld.observe.access import Access
from multiworld.observe.site import HTML, Answer, Request, Site

SITE = Site(
    {
        "": lambda _: Answer(content_type=HTML, body=b"<p>"),
        "/events": lambda request: Answer.events(parts(request.last_event())),
    },
    access=Access(owner="job"),
    policy="default-src 'none'",
    prefix="/page",
)


def parts(number: int) -> Iterator[bytes]:
    yield str(number).encode()


def request(path: str, method: str = "GET", **headers: str) -> Request:
    return Request(method=method, path=path, query="", headers={"host": "localhost", **headers})


def test_a_path_has_an_answer() -> None:
    assert SITE.refusal(request("")) is None
    assert SITE.answer(request("")).body == b"<p>"


def test_other_paths_are_told_which_there_are() -> None:
    answer = SITE.answer(request("/x"))
    assert (answer.status, answer.body) == (404, b"there is /page and /page/events")


def test_a_site_can_only_be_read() -> None:
    refused = SITE.refusal(request("", "POST"))
    assert refused is not None
    assert (refused.status, refused.headers) == (405, {"Allow": "GET, HEAD"})


def test_pages_of_other_sites_are_refused() -> None:
    refused = SITE.refusal(request("", origin="http://other.example.org"))
    assert refused is not None
    assert refused.status == 403


def test_each_head_keeps_answers_out_of_caches_and_of_other_pages() -> None:
    for answer in (SITE.answer(request("")), Answer.text(503, "busy", Retry_After="5")):
        head = SITE.head(answer)
        assert head["Cache-Control"] == "no-store"
        assert head["Content-Security-Policy"] == "default-src 'none'"
        assert head["Referrer-Policy"] == "no-referrer"
        assert isinstance(answer.body, bytes)
        assert head["Content-Length"] == str(len(answer.body))
    assert SITE.head(Answer.text(503, "busy", Retry_After="5"))["Retry-After"] == "5"


def test_a_stream_goes_on_after_the_last_event_of_its_reader() -> None:
    answer = SITE.answer(request("/events", **{"last-event-id": "7"}))
    assert isinstance(answer.body, Iterator)
    assert list(answer.body) == [b"7"]
    assert "Content-Length" not in SITE.head(answer)
