"""Decide where the launcher's own options end: what stands after the script belongs to the script. Pure."""

from __future__ import annotations

from argparse import Action
from collections import deque
from collections.abc import Container, Mapping, Sequence


class AmbiguousOptionError(ValueError):
    """An abbreviation that stands for several options."""

    def __init__(self, given: str, options: Sequence[str]) -> None:
        super().__init__(given, options)
        self.given, self.options = given, options

    def __str__(self) -> str:
        return f"ambiguous option: {self.given} could match {', '.join(self.options)}"


def split_at_script(
    arguments: Sequence[str], options: Mapping[str, Action], preferred: Container[str]
) -> tuple[list[str], list[str]]:
    """Return what is the launcher's, its options in full and the script at its end, and the script's arguments.

    argparse would look for options, and for what abbreviates them, in the script's arguments too. ``options`` are the
    launcher's by their names. An abbreviation of one in ``preferred`` means that one, though it could stand for others.
    Raises AmbiguousOptionError. An option that nobody knows stays, for the parser to complain about.
    """
    rest = deque(arguments)
    ours: list[str] = []
    while rest:
        argument = rest.popleft()
        if argument == "--" and rest:  # the next is the script, whatever it looks like
            ours += [argument, rest.popleft()]
            break
        if argument == "-" or not argument.startswith("-"):
            ours.append(argument)
            break
        if argument.startswith("--"):
            given, assigned, value = argument.partition("=")
            name = _in_full(given, options, preferred)
            ours.append(name + assigned + value)
            takes_next = not assigned and _takes_value(options.get(name))
        else:
            ours.append(argument)
            takes_next = _letters_take_next(argument[1:], options)
        if takes_next and rest:
            ours.append(rest.popleft())
    return ours, list(rest)


def _in_full(given: str, options: Mapping[str, Action], preferred: Container[str]) -> str:
    if given in options:
        return given
    found = [name for name in options if name.startswith(given)]
    for names in ([name for name in found if name in preferred], found):
        firsts = {options[name].dest: name for name in reversed(names)}  # one spelling of each
        if len(firsts) == 1:
            return next(iter(firsts.values()))
    if found:
        raise AmbiguousOptionError(given, sorted({options[name].dest: name for name in reversed(found)}.values()))
    return given


def _letters_take_next(letters: str, options: Mapping[str, Action]) -> bool:
    """Whether the value of the last of these one-letter options is the next argument. ``r3`` has its own."""
    for at, letter in enumerate(letters):
        if _takes_value(options.get(f"-{letter}")):
            return at == len(letters) - 1
    return False


def _takes_value(option: Action | None) -> bool:
    return option is not None and option.nargs is None
