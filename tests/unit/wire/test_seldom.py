"""News that come often are told seldom, with how often they came."""

from __future__ import annotations

from multiworld.wire.seldom import SELDOM_S, Seldom


def test_news_are_told_once_in_a_while_and_counted() -> None:
    told: list[str] = []
    now = 0.0
    say = Seldom(lambda text, *args: told.append(text % args), lambda: now)
    for number in range(3):
        say("refused %d", number)
    assert told == ["refused 0"]
    now += SELDOM_S
    say("refused %d", 3)
    now += SELDOM_S
    say("refused %d", 4)
    assert told[1:] == ["refused 3 (and 2 times more since this was said last)", "refused 4"]
