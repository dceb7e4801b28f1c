"""Who may read a page: the rule that all pages share."""

from __future__ import annotations

from multiworld.observe.access import Access
from multiworld.observe.sites import SiteRule

HERE = {"host": "localhost:8000"}
PROXIED = {**HERE, "x-forwarded-for": "10.0.0.7"}
OPEN = SiteRule(is_open=True)


def test_programs_of_this_host_need_no_token() -> None:
    assert Access(owner="job", token="secret").refusal("GET", "/", "", HERE) is None


def test_others_show_the_token_of_its_owner() -> None:
    access = Access(owner="job", token="secret", sites=OPEN)
    assert access.refusal("GET", "/", "token=secret", HERE) is None
    assert access.refusal("GET", "/", "", {**HERE, "authorization": "Bearer secret"}) is None
    assert access.refusal("GET", "/", "token=other", HERE) == (
        401,
        "show the job's token: ?token=... or Authorization: Bearer ...",
    )


def test_without_a_token_nobody_elsewhere_reads_anything() -> None:
    refused = Access(owner="job").refusal("GET", "/", "token=", {**PROXIED, "authorization": "Bearer "})
    assert refused is not None
    assert refused[0] == 403


def test_open_paths_need_no_token_and_still_refuse_other_sites() -> None:
    access = Access(owner="job", token="secret", sites=OPEN, open_paths=frozenset({"/healthz"}))
    assert access.refusal("GET", "/healthz", "", PROXIED) is None
    refused = access.refusal("GET", "/healthz", "", {**HERE, "origin": "http://other.example.org"})
    assert refused is not None
    assert refused[0] == 403


def test_a_token_is_not_shown_in_logs() -> None:
    assert "secret" not in repr(Access(owner="job", token="secret"))
