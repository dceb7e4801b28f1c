"""Whatever happens to requests: each is closed once, counted once, and expires once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from multiworld.serving.ingress.admission import Admission
from multiworld.serving.ingress.requests import Open, Requests

STEPS = st.lists(
    st.tuples(
        st.sampled_from(("open", "answer", "fail", "expire", "lose", "retry", "kept")),
        st.integers(0, 30),
        st.sampled_from(("", "a", "b", "c")),
    ),
    max_size=80,
)


@given(STEPS)
def test_requests_are_closed_once_and_counts_add_up(steps: list[tuple[str, int, str]]) -> None:
    requests = Requests(Admission(max_open=8, max_bytes=200, keep_s=3.0, keep_bytes=3000))
    open_: dict[bytes, Open] = {}
    num_opened = num_answered = num_failed = 0
    expired: set[bytes] = set()
    now = 0.0
    for index, (what, number, name) in enumerate(steps):
        now += 0.25
        some = list(open_)[number % len(open_)] if open_ else b"none"
        if what == "open" and requests.retry_after_s(number, now=now) is None and not (name and requests.chosen(name)):
            request = Open(bytes([index]) * 16, None, None, opened_at=now, deadline=now + number / 4, size_bytes=number)
            request.chosen = name or None
            requests.open(request)
            open_[request.id] = request
            num_opened += 1
        elif what == "answer":
            assert requests.answered(some, some, 500, now=now) is open_.pop(some, None)
            num_answered += some != b"none"
        elif what == "fail":
            assert requests.failed(some) is open_.pop(some, None)
            num_failed += some != b"none"
        elif what == "expire":
            late = {request.id for request in requests.expired(now=now)}
            assert not late & expired
            expired |= late
            assert {id_ for id_, request in open_.items() if request.deadline <= now} <= expired
        elif what == "lose":
            requests.retries.replica_lost(now=now)
        elif what == "retry":
            assert all(request.id in open_ and request.attempt <= 3 for request in requests.retries.to_retry(now=now))
        elif what == "kept" and name:
            assert requests.kept(name, now=now) not in open_
        assert len(requests) == len(open_) <= 8
        assert requests.open_bytes == sum(request.size_bytes for request in open_.values())
        assert (requests.num_answered, requests.num_failed) == (num_answered, num_failed)
    assert num_opened == num_answered + num_failed + len(open_)
