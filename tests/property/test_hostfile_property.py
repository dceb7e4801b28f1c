"""Hostfiles of any shape: what was written is read, and what does not parse is refused where it stands."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from multiworld.elastic.hosts.hostfile import HostfileError, HostLine, parse_hostfile

NAMES = st.from_regex(r"\A([a-z]{1,4}@)?[a-z][a-z0-9.-]{0,8}\Z")
SPACES = st.sampled_from([" ", "  ", "\t", " \t "])


@st.composite
def lines(draw: st.DrawFn) -> tuple[HostLine, str]:
    devices = tuple(draw(st.lists(st.integers(0, 99), unique=True, max_size=8)))
    slots = draw(st.none() | st.integers(1, len(devices) or 64))
    port = draw(st.none() | st.integers(1, 65535))
    name = draw(NAMES)
    words = draw(
        st.permutations(
            [
                *([] if slots is None else [f"slots={slots}"]),
                *([f"devices={','.join(map(str, devices))}"] if devices else []),
                *([] if port is None else [f"port={port}"]),
            ]
        )
    )
    text = draw(st.sampled_from(["", " "])) + name
    for word in words:
        text += draw(SPACES) + word
    text += draw(st.sampled_from(["", " ", " # slots=x", "#"]))
    return HostLine(name=name, slots=slots or max(1, len(devices)), devices=devices, port=port), text


@given(st.lists(lines(), min_size=1, max_size=6, unique_by=lambda each: (each[0].name, each[0].port)), st.data())
def test_what_was_written_is_read(written: list[tuple[HostLine, str]], data: st.DataObject) -> None:
    text = "".join(data.draw(st.sampled_from(["", "\n", "# port=0\n"])) + line + "\n" for _, line in written)
    assert parse_hostfile(text, "hosts") == tuple(host for host, _ in written)


@given(st.text(alphabet="ab= \t\n,#@[]:0123slotdevicpr-", max_size=80))
def test_any_text_is_read_or_refused_at_a_place_in_it(text: str) -> None:
    refusal: HostfileError | None = None
    hosts: tuple[HostLine, ...] = ()
    try:
        hosts = parse_hostfile(text, "hosts")
    except HostfileError as error:
        refusal = error
    assert all(each.name and each.slots >= 1 and not each.name.startswith("-") for each in hosts)
    assert (refusal is None) == bool(hosts)
    if refusal is not None:
        there = [*text.splitlines(), ""]
        assert 1 <= refusal.column <= len(there[refusal.line - 1]) + 1
