"""What a configuration says reaches the program in one variable, and a call of join overrides it."""

from __future__ import annotations

import pytest

from multiworld.training.errors import SetupError
from multiworld.training.settings import SETTINGS_VARIABLE, CheckpointSettings, TrainingSettings, settings_of
from multiworld.world.launcher.launched import RUN_FOLDER_VARIABLE


def test_settings_come_back_as_they_were() -> None:
    settings = TrainingSettings(min_replicas=2, checkpoint=CheckpointSettings(dir="/c", every_steps=10), record="/r")

    assert settings_of(settings.to_environment()) == settings
    assert settings_of({}) == TrainingSettings()


def test_without_a_record_of_its_own_it_is_in_the_launchers_folder_of_the_run() -> None:
    assert settings_of({RUN_FOLDER_VARIABLE: "/logs/run"}).record == "/logs/run/training"
    said = TrainingSettings(min_replicas=3).to_environment()
    assert settings_of({**said, RUN_FOLDER_VARIABLE: "/logs/run"}) == TrainingSettings(
        min_replicas=3, record="/logs/run/training"
    )
    said = TrainingSettings(record="/mine").to_environment()
    assert settings_of({**said, RUN_FOLDER_VARIABLE: "/logs/run"}).record == "/mine"


@pytest.mark.parametrize("said", ["{", "[]", '{"min_replicas": 0}', '{"checkpoint": {"dir": ""}}'])
def test_a_variable_that_holds_something_else_is_told(said: str) -> None:
    with pytest.raises(SetupError, match=f"{SETTINGS_VARIABLE} holds no settings"):
        settings_of({SETTINGS_VARIABLE: said})
