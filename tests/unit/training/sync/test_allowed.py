"""Which options go with semi-synchronous training."""

from __future__ import annotations

import pytest

from multiworld.training.health.options import Replay
from multiworld.training.options import TrainingOptions
from multiworld.training.sync.allowed import check_sync
from multiworld.training.sync.strategies import LocalSGD

SYNC = LocalSGD(every=4)


def test_without_it_all_options_are_allowed() -> None:
    check_sync(None, TrainingOptions(name="t", exact=True, replica_size=2))


def test_it_goes_with_the_defaults() -> None:
    check_sync(SYNC, TrainingOptions(name="t"))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (TrainingOptions(name="t", exact=True), "exact=True"),
        (TrainingOptions(name="t", batch="drop"), "batch='drop'"),
        (TrainingOptions(name="t", on_bad_step="skip"), "on_bad_step"),
        (TrainingOptions(name="t", replay=Replay(every=5)), "replay"),
    ],
)
def test_what_does_not_go_with_it_is_named(options: TrainingOptions, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        check_sync(SYNC, options)


def test_something_else_is_no_strategy() -> None:
    with pytest.raises(TypeError, match="LocalSGD"):
        check_sync("diloco", TrainingOptions(name="t"))
