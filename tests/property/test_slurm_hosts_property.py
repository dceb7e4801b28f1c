"""Slurm's host lists: whatever hosts a list was written from come back, in their order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from multiworld.elastic.schedulers.slurm import expand_hosts

words = st.text("abcxyz-.", min_size=1, max_size=5)


@st.composite
def brackets(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A bracket as Slurm writes it, and the numbers in it."""
    written, numbers = [], []
    for _ in range(draw(st.integers(1, 3))):
        first, more, width = draw(st.integers(0, 120)), draw(st.integers(0, 12)), draw(st.integers(1, 4))
        digits = f"{first:0{width}d}"
        written.append(digits if not more else f"{digits}-{first + more:0{width}d}")
        numbers += [f"{number:0{len(digits)}d}" for number in range(first, first + more + 1)]
    return f"[{','.join(written)}]", numbers


@st.composite
def names(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A part of a list, and the hosts that it stands for."""
    written, hosts = "", [""]
    for text, choices in draw(
        st.lists(st.one_of(words.map(lambda word: (word, [word])), brackets()), min_size=1, max_size=3)
    ):
        written += text
        hosts = [host + choice for host in hosts for choice in choices]
    return written, hosts


@given(st.lists(names(), min_size=1, max_size=4))
def test_a_list_expands_to_the_hosts_that_it_was_written_from(parts: list[tuple[str, list[str]]]) -> None:
    text = ",".join(written for written, _ in parts)
    assert list(expand_hosts(text)) == [host for _, hosts in parts for host in hosts]


@given(st.text("ab01[]-,", max_size=8))
def test_any_text_is_a_list_of_hosts_or_a_value_error(text: str) -> None:
    try:
        hosts = expand_hosts(text)
    except ValueError:
        return
    assert hosts
    assert all(host and not set(host) & set("[],") for host in hosts)
