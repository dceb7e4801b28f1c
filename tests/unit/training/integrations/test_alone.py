"""Hide the launcher from a library."""

from __future__ import annotations

import os

import pytest

from multiworld.training.integrations.alone import alone


def test_the_launcher_is_hidden_within_the_block_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.delenv("PMI_SIZE", raising=False)

    def fail_alone() -> None:
        with alone():
            assert "RANK" not in os.environ
            assert "MASTER_ADDR" not in os.environ
            raise ValueError

    with pytest.raises(ValueError):
        fail_alone()
    assert (os.environ["RANK"], os.environ["MASTER_ADDR"]) == ("3", "10.0.0.1")
    assert "PMI_SIZE" not in os.environ
