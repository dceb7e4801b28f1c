"""Which requests of web pages are answered."""

from __future__ import annotations

import pytest

from multiworld.observe.sites import SiteRule, check_host_name, check_origin, site_rule

HERE = SiteRule()


@pytest.mark.parametrize(
    ("header", "is_here"),
    [
        ("localhost", True),
        ("LocalHost.:8080", True),
        ("localhost:8080", True),
        ("127.0.0.1:8080", True),
        ("[::1]:8080", True),
        ("[::1]", True),
        ("127.1", True),
        ("127.1:8080", True),
        ("127.0.1", True),
        ("0x7f.0.0.1", True),
        ("0177.0.0.1", True),
        ("2130706433", True),
        ("127.255.255.254:8080", True),
        ("[::ffff:127.0.0.1]:8080", True),
        ("[::FFFF:7f00:1]", True),
        ("[0:0:0:0:0:0:0:1]", True),
        ("[::ffff:10.0.0.1]", False),
        ("128.1", False),
        ("127.256.1", False),
        ("127.0.0.0.1", False),
        ("127.08.1", False),
        ("127..1", False),
        ("127.1.example.org", False),
        ("127.1a", False),
        ("0x", False),
        ("4294967297", False),
        ("9" * 5000, False),
        ("\u0661\u0662\u0667.1", False),
        ("example.org", False),
        ("example.org:8080", False),
        ("127.0.0.1.example.org:8080", False),
        ("localhost.example.org", False),
        ("10.0.0.1:8080", False),
        ("[fe80::1]", False),
        (":8080", False),
    ],
)
def test_a_name_that_leads_here_is_not_a_name_of_this_host(header: str, is_here: bool) -> None:
    assert (HERE.refusal("GET", {"host": header}) == "") is is_here


def test_programs_that_are_no_browsers_are_let_in() -> None:
    assert not HERE.refusal("POST", {})
    assert not HERE.refusal("POST", {"host": "localhost:8000"})


@pytest.mark.parametrize(
    ("rule", "host", "is_called"),
    [
        (site_rule("127.0.0.1", allowed_hosts=("models.example.org",)), "models.example.org:443", True),
        (site_rule("127.0.0.1", allowed_hosts=("models.example.org",)), "Models.Example.org.", True),
        (site_rule("127.0.0.1", allowed_hosts=("models.example.org",)), "other.example.org", False),
        (site_rule("127.0.0.1", allowed_hosts=("10.0.0.1",)), "10.0.0.1:8000", True),
        (site_rule("localhost"), "other.example.org", False),
        (site_rule("0.0.0.0"), "any.example.org", True),
        (site_rule("node-1"), "any.example.org", True),
        (site_rule("0.0.0.0", allowed_hosts=("models.example.org",)), "any.example.org", False),
        (site_rule("0.0.0.0", allowed_hosts=("models.example.org",)), "10.0.0.1:8000", True),
        (site_rule("::", allowed_hosts=("models.example.org",)), "[fd00::1]:8000", True),
    ],
)
def test_a_server_may_have_other_names(rule: SiteRule, host: str, is_called: bool) -> None:
    assert (rule.refusal("GET", {"host": host}) == "") is is_called


@pytest.mark.parametrize(
    ("method", "headers", "is_answered"),
    [
        ("POST", {"origin": "http://localhost:8000"}, True),
        ("POST", {"origin": "http://localhost:3000"}, False),
        ("POST", {"origin": "http://evil.example.org"}, False),
        ("GET", {"origin": "http://evil.example.org"}, False),
        ("POST", {"origin": "null"}, False),
        ("POST", {"origin": ""}, False),
        ("POST", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, False),
        ("POST", {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}, False),
        ("POST", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, False),
        ("POST", {"sec-fetch-site": "same-origin"}, True),
        ("GET", {"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}, True),
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, True),
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, False),
    ],
)
def test_pages_of_other_sites_are_refused(method: str, headers: dict[str, str], is_answered: bool) -> None:
    assert (HERE.refusal(method, {"host": "localhost:8000", **headers}) == "") is is_answered


@pytest.mark.parametrize("origin", ["http://models.example.org", "https://models.example.org:443"])
def test_a_page_behind_a_proxy_may_ask_its_own_server(origin: str) -> None:
    rule = site_rule("127.0.0.1", allowed_hosts=("models.example.org",))
    assert not rule.refusal("POST", {"host": "models.example.org", "origin": origin})


def test_pages_of_an_allowed_site_may_ask_and_read() -> None:
    rule = SiteRule(origins=("https://app.example.org",))
    headers = {"host": "localhost:8000", "origin": "https://app.example.org", "sec-fetch-site": "cross-site"}
    assert not rule.refusal("POST", headers)
    assert rule.sharing(headers)["access-control-allow-origin"] == "https://app.example.org"
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "content-type,x-shape"}
    assert rule.preflight({**headers, **asked}) == {
        "access-control-allow-methods": "POST",
        "access-control-allow-headers": "content-type,x-shape",
        "access-control-max-age": "600",
    }
    assert rule.refusal("POST", {**headers, "host": "evil.example.org"}), "its name must be ours all the same"


def test_other_origins_share_nothing() -> None:
    rule = SiteRule(origins=("https://app.example.org",))
    headers = {"origin": "https://evil.example.org", "access-control-request-method": "POST"}
    assert rule.sharing(headers) == {"vary": "origin"}
    assert rule.preflight(headers) is None
    assert SiteRule(origins=("*",)).sharing(headers)["access-control-allow-origin"] == "https://evil.example.org"


def test_what_depends_on_the_origin_says_so_to_caches_also_without_one() -> None:
    assert SiteRule(origins=("https://app.example.org",)).sharing({}) == {"vary": "origin"}
    assert SiteRule(origins=("*",)).sharing({"host": "localhost"}) == {"vary": "origin"}
    assert HERE.sharing({}) == {}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.1", "::ffff:127.0.0.1"])
def test_a_server_on_loopback_is_reached_by_its_host_alone(host: str) -> None:
    assert not site_rule(host).is_open


@pytest.mark.parametrize(
    ("rule", "headers", "is_from_here"),
    [
        (HERE, {"host": "localhost:8000"}, True),
        (HERE, {"host": "[::ffff:127.0.0.1]:8000"}, True),
        (HERE, {}, True),
        (site_rule("0.0.0.0"), {"host": "localhost:8000"}, False),
        (site_rule("127.0.0.1", allowed_hosts=("models.example.org",)), {"host": "localhost:8000"}, True),
        (site_rule("127.0.0.1", allowed_hosts=("models.example.org",)), {"host": "models.example.org"}, False),
        (site_rule("127.0.0.1", allowed_hosts=("10.0.0.1",)), {"host": "10.0.0.1:8000"}, False),
        (site_rule("127.0.0.1", allowed_hosts=("models.example.org",)), {}, False),
        (HERE, {"host": "127.0.0.1:8000", "x-forwarded-for": "10.0.0.7"}, False),
        (HERE, {"host": "127.0.0.1:8000", "forwarded": "for=10.0.0.7"}, False),
        (HERE, {"host": "127.0.0.1:8000", "via": "1.1 proxy"}, False),
    ],
)
def test_a_request_that_a_proxy_passes_on_is_not_this_hosts(
    rule: SiteRule, headers: dict[str, str], is_from_here: bool
) -> None:
    assert rule.is_from_here(headers) is is_from_here


@pytest.mark.parametrize(
    ("origin", "kept"),
    [
        ("https://App.example.org", "https://app.example.org"),
        ("http://localhost:3000", "http://localhost:3000"),
        ("https://app.example.org:443", "https://app.example.org"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("*", "*"),
    ],
)
def test_an_origin_is_kept_as_browsers_write_it(origin: str, kept: str) -> None:
    assert check_origin(origin) == kept


@pytest.mark.parametrize("origin", ["app.example.org", "https://app.example.org/", "https://a b", "", "null"])
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ValueError, match="must be a scheme, a host"):
        check_origin(origin)


@pytest.mark.parametrize("name", ["models.example.org:443", "https://models.example.org", ""])
def test_what_is_no_name_of_a_host_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="without a port"):
        check_host_name(name)
