"""Whether the program left a loop or an error did, for the ways in which loops are written."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

import pytest

from multiworld.training.loop_exit import is_left_by_error


class Steps:
    """Three steps, and how the loop over them was left: None if it ran to its end."""

    by_error: bool | None = None

    def __iter__(self) -> Iterator[int]:
        try:
            yield from range(3)
        except GeneratorExit:
            self.by_error = is_left_by_error(sys._getframe().f_back)
            raise


def breaks(steps: Steps) -> None:
    for step in steps:
        if step == 1:
            break


def breaks_in_enumerate(steps: Steps) -> None:
    for number, _ in enumerate(steps):
        if number == 1:
            break


def breaks_after_an_error_that_it_keeps(steps: Steps) -> None:
    kept: list[ValueError] = []
    for _ in steps:
        try:
            int("no number")
        except ValueError as error:
            kept.append(error)
        if len(kept) == 2:
            break


def breaks_in_a_finally(steps: Steps) -> None:
    for step in steps:
        try:
            if step == 1:
                break
        finally:
            str(step)


def returns(steps: Steps) -> None:
    for step in steps:
        with contextlib.suppress(ValueError):
            if step == 1:
                return


def closes(steps: Steps) -> None:
    iterator = iter(steps)
    next(iterator)
    iterator.close()  # type: ignore[attr-defined]


def wrapped(steps: Steps) -> Iterator[int]:
    for step in steps:
        try:
            yield step
        finally:
            str(step)


def breaks_out_of_a_wrapper(steps: Steps) -> None:
    for step in wrapped(steps):
        if step == 1:
            break


def runs_to_the_end(steps: Steps) -> None:
    for _ in steps:
        pass


def raises(steps: Steps) -> None:
    for step in steps:
        if step == 1:
            raise ValueError


def raises_in_a_call(steps: Steps) -> None:
    for step in steps:
        with contextlib.nullcontext():
            if step == 1:
                int("no number")


def raises_and_has_a_finally(steps: Steps) -> None:
    for step in steps:
        try:
            if step == 1:
                int("no number")
        finally:
            str(step)


def raises_again(steps: Steps) -> None:
    for step in steps:
        try:
            if step == 1:
                int("no number")
        except ValueError:
            str(step)
            raise


def raises_and_catches_outside(steps: Steps) -> None:
    with contextlib.suppress(ValueError):
        for step in steps:
            if step == 1:
                int("no number")


def raises_around_a_wrapper(steps: Steps) -> None:
    for step in wrapped(steps):
        if step == 1:
            raise ValueError


def raises_in_a_generator_of_its_own(steps: Steps) -> None:
    def results() -> Iterator[int]:
        for step in steps:
            if step == 1:
                raise ValueError
            yield step

    for _ in results():
        pass


def exits(steps: Steps) -> None:
    for _ in steps:
        sys.exit(1)


@pytest.mark.parametrize(
    "program",
    [
        breaks,
        breaks_in_enumerate,
        breaks_after_an_error_that_it_keeps,
        breaks_in_a_finally,
        returns,
        closes,
        breaks_out_of_a_wrapper,
    ],
)
def test_a_loop_that_the_program_leaves_is_not_left_by_an_error(program: Callable[[Steps], None]) -> None:
    steps = Steps()
    program(steps)
    assert steps.by_error is False


@pytest.mark.parametrize(
    "program",
    [
        raises,
        raises_in_a_call,
        raises_and_has_a_finally,
        raises_again,
        raises_and_catches_outside,
        raises_around_a_wrapper,
        raises_in_a_generator_of_its_own,
        exits,
    ],
)
def test_an_error_that_leaves_the_loop_is_seen(program: Callable[[Steps], None]) -> None:
    steps = Steps()
    with contextlib.suppress(ValueError, SystemExit):
        program(steps)
    assert steps.by_error is True


def test_a_loop_that_ends_was_not_left() -> None:
    steps = Steps()
    runs_to_the_end(steps)
    assert steps.by_error is None
