"""News that come often are told seldom, with how often they came."""

from __future__ import annotations

from multiworld.wire.rate_limited_log import LOG_PERIOD_S, RateLimitedLog


def test_news_are_told_once_in_a_while_and_counted() -> None:
    told: list[str] = []
    now = 0.0
    say = RateLimitedLog(lambda text, *args: told.append(text % args), lambda: now)
    for number in range(3):
        say("refused %d", number)
    assert told == ["refused 0"]
    now += LOG_PERIOD_S
    say("refused %d", 3)
    now += LOG_PERIOD_S
    say("refused %d", 4)
    assert told[1:] == ["refused 3 (and 2 times more since this was said last)", "refused 4"]
