"""Mend the C that mypyc writes where it supposes that one thread runs it, or that nothing runs while an object goes.

Both are wrong with the interpreter lock, too. What goes may be the last reference to a tensor, whose end lets go of the
lock for a moment, or to something with a finalizer in Python. Until then mypyc 2.4

- lets an attribute that is assigned to point to its former value while that ends: who reads it meanwhile has an object
  that does not exist any more. Here the new value is in place before the former one ends;
- has the environment of a closure, or a coroutine, wait to be used again before what it holds has ended: another
  thread takes it, and loses what it puts in. Here it waits once it is empty.

``setup.py`` runs this module where the package's requirements are missing: it imports nothing of the package.
"""

from __future__ import annotations

import re

__all__ = ["UnknownCodeError", "made_safe"]

FREED = re.compile(
    r"^(?P<indent> *)if \((?P<slot>\w+_free_instance) == NULL\) \{\n"
    r" *(?P=slot) = self;\n"
    r"(?P<clearing>(?:[^\n]*\n)*?)"
    r" *return;\n"
    r"(?P=indent)\}\n",
    re.MULTILINE,
)
IS_FREED = re.compile(r"_free_instance = self;")
DROP = re.compile(r"^ *CPy(?:Tagged)?_X?DECREF\((?P<attribute>.*->\w+?)(?:\.f\d+)*\);$")
FORMER = "former"


class UnknownCodeError(Exception):
    """The code is not what is known of mypyc, so that nobody can say whether it may run in several threads."""


def made_safe(code: str) -> str:
    """Return a file of C that mypyc wrote so that several threads may run it. Raises ``UnknownCodeError``."""
    code, num_freed = FREED.subn(_freed_when_empty, code)
    if num_freed != len(IS_FREED.findall(code)):
        raise UnknownCodeError("objects are kept to be used again in a way that is not known")
    return "\n".join(_stored_first(code.split("\n")))


def _freed_when_empty(match: re.Match[str]) -> str:
    """Another one may wait there by then: this one goes the usual way, where clearing it again does nothing."""
    indent, slot = match["indent"], match["slot"]
    return (
        f"{indent}if ({slot} == NULL) {{\n"
        f"{match['clearing']}"
        f"{indent}    if ({slot} == NULL) {{\n"
        f"{indent}        {slot} = self;\n"
        f"{indent}        return;\n"
        f"{indent}    }}\n"
        f"{indent}}}\n"
    )


def _stored_first(lines: list[str]) -> list[str]:
    """Have each assignment to an attribute store the new value, and then let the former one go."""
    mended: list[str] = []
    position = 0
    while position < len(lines):
        found = DROP.match(lines[position])
        if found is None:
            mended.append(lines[position])
            position += 1
            continue
        attribute, first = found["attribute"], position
        while (found := DROP.match(lines[position])) is not None and found["attribute"] == attribute:
            position += 1
        drops = lines[first:position]
        if mended[-1].lstrip().startswith(f"if ({attribute}") and mended[-1].endswith("{"):  # it has a value
            position = _expect(lines, position, "}")
            drops = [mended.pop(), *drops, "}"]
        store = lines[position].strip()
        position = _expect(lines, position, f"{attribute} = ")
        mended += [
            "{",
            f"__typeof__({attribute}) {FORMER} = {attribute};",
            store,
            *(line.strip().replace(attribute, FORMER) for line in drops),
            "}",
        ]
    return mended


def _expect(lines: list[str], position: int, start: str) -> int:
    """Return where it goes on after a line that begins so."""
    if not lines[position].lstrip().startswith(start):
        raise UnknownCodeError(f"an attribute is let go of, and then comes: {lines[position].strip()}")
    return position + 1
