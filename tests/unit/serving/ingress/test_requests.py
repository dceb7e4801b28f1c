"""One answer per request, admission, deadlines, and what is sent again after a loss."""

from __future__ import annotations

import math
import pickle

import pytest

from multiworld.serving.flow.retry import MAX_ATTEMPTS
from multiworld.serving.ingress.admission import Admission
from multiworld.serving.ingress.requests import Open, Requests


def opened(requests: Requests, number: int, *, now: float = 0.0, deadline: float = math.inf, size: int = 10) -> Open:
    request = Open(bytes([number]) * 16, None, None, opened_at=now, deadline=deadline, size_bytes=size)
    requests.open(request)
    return request


def chosen(requests: Requests, number: int, name: str) -> Open:
    request = Open(bytes([number]) * 16, None, None, opened_at=0.0, deadline=math.inf, size_bytes=10)
    request.chosen = name
    requests.open(request)
    return request


def test_a_request_is_answered_once() -> None:
    requests = Requests(Admission())
    request = opened(requests, 1)
    assert requests.answered(request.id, "y", 1, now=0.1) is request
    assert requests.answered(request.id, "y", 1, now=0.2) is None
    assert requests.failed(request.id) is None
    assert (requests.num_answered, requests.num_repeated, len(requests), requests.open_bytes) == (1, 1, 0, 0)


def test_admission_ends_at_its_bounds_and_says_when_to_come_again() -> None:
    requests = Requests(Admission(max_open=2, max_bytes=100))
    assert requests.retry_after_s(1000, now=0.0) is None, "a large one alone is taken"
    opened(requests, 1, size=60)
    assert requests.retry_after_s(50, now=0.0) == 1.0
    assert requests.retry_after_s(40, now=0.0) is None
    opened(requests, 2, size=1)
    assert requests.retry_after_s(1, now=0.0) is not None
    assert requests.num_refused == 2
    with pytest.raises(ValueError, match="max_open"):
        Admission(max_open=-1)


def test_an_answer_is_kept_under_the_name_that_the_client_chose_for_a_while() -> None:
    requests = Requests(Admission(keep_s=5.0, keep_bytes=5000))
    request = chosen(requests, 1, "mine")
    assert requests.chosen("mine") is request
    requests.answered(request.id, "y", 1000, now=1.0)
    assert requests.chosen("mine") is None
    assert requests.kept("mine", now=5.9) == "y"
    assert requests.kept("mine", now=6.1) is None
    for number in range(2, 6):
        requests.answered(chosen(requests, number, str(number)).id, number, 1000, now=7.0)
    assert [requests.kept(str(number), now=7.0) for number in range(2, 6)] == [None, None, 4, 5]


def test_a_name_can_be_used_again_after_a_failure() -> None:
    requests = Requests(Admission())
    first = chosen(requests, 1, "mine")
    requests.failed(first.id)
    second = chosen(requests, 2, "mine")
    assert requests.failed(first.id) is None
    assert requests.chosen("mine") is second


def test_deadlines_are_told_once_and_those_of_closed_requests_use_no_memory() -> None:
    requests = Requests(Admission())
    late = opened(requests, 1, deadline=1.0)
    opened(requests, 2, deadline=2.0)
    opened(requests, 3)
    assert requests.expired(now=0.9) == []
    assert requests.expired(now=1.0) == [late]
    assert requests.expired(now=1.1) == []
    requests.failed(late.id)
    for number in range(20_000):
        request = Open(number.to_bytes(16, "little"), None, None, opened_at=0.0, deadline=100.0 + number, size_bytes=1)
        requests.open(request)
        requests.answered(request.id, None, 1, now=0.0)
    assert len(requests._deadlines) < 3000
    assert [request.id for request in requests.expired(now=2.0)] == [bytes([2]) * 16]


def test_after_a_loss_only_what_could_be_lost_is_sent_again_and_not_for_ever() -> None:
    requests = Requests(Admission())
    before, held = opened(requests, 1), opened(requests, 2)
    requests.retries.replica_lost(now=1.0)
    opened(requests, 3, now=1.1)
    assert requests.retries.to_retry(now=1.2) == []
    assert requests.retries.to_retry(now=1.3, held=lambda id_: id_ == held.id) == [before]
    assert before.attempt == 2
    assert requests.retries.to_retry(now=1.4) == []
    for attempt in range(3, 10):
        requests.retries.replica_lost(now=float(attempt))
        again = requests.retries.to_retry(now=attempt + 0.5)
        assert (before in again) == (attempt <= MAX_ATTEMPTS)


def test_a_loss_that_is_noted_twice_costs_one_attempt() -> None:
    requests = Requests(Admission())
    request = opened(requests, 1)
    requests.retries.replica_lost(now=1.0)
    requests.retries.replica_lost(now=1.05)
    assert requests.retries.to_retry(now=1.27) == [request]
    assert requests.retries.to_retry(now=1.4) == []
    assert request.attempt == 2
    requests.retries.replica_lost(now=2.0)
    assert requests.retries.to_retry(now=2.5) == [request]


def test_what_the_first_stage_had_for_one_branch_is_looked_at_again_when_it_has_gone_on() -> None:
    requests = Requests(Admission(), may_lose_held=True)
    request, other = opened(requests, 1), opened(requests, 2)
    held = {request.id, other.id}
    requests.retries.replica_lost(now=1.0)
    for now in (1.3, 1.6, 1.9):
        assert requests.retries.to_retry(now=now, held=held.__contains__) == []
    held.clear()
    assert requests.retries.to_retry(now=2.2, held=held.__contains__) == [], "they have just gone on"
    requests.answered(other.id, None, 1, now=2.3)
    assert requests.retries.to_retry(now=2.5, held=held.__contains__) == [request]
    assert requests.retries.to_retry(now=9.0, held=held.__contains__) == []
    assert not requests.retries._recheck


def test_bounds_may_be_any_numbers_and_travel() -> None:
    admission = Admission(max_open=math.inf, max_bytes=1e9)
    assert Requests(admission).retry_after_s(1, now=0.0) is None
    assert pickle.loads(pickle.dumps(admission)) == admission
    with pytest.raises(ValueError, match="max_bytes must be a number from 0, got 'much'"):
        Admission(max_bytes="much")  # type: ignore[arg-type]


def test_quantiles_are_of_the_last_answers() -> None:
    requests = Requests(Admission())
    assert requests.latencies.quantile(0.99) == 0.0
    for number in range(1, 101):
        requests.latencies.add(float(number))
    assert (requests.latencies.quantile(0.5), requests.latencies.quantile(0.99)) == (50.0, 99.0)
    assert requests.latencies.patience_s == 4 * 99.0


def test_nothing_is_taken_in_while_the_first_that_waits_has_waited_for_long() -> None:
    requests = Requests(Admission(max_wait_s=1.0))
    assert requests.retry_after_s(1, now=5.0, waited_s=0.9) is None
    assert requests.retry_after_s(1, now=5.0, waited_s=1.1) == 1.0
    assert requests.num_refused == 1
