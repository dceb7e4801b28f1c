"""What a launcher's configuration says about a training, and how it reaches ``training.join``. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import MessageError
from ..wire.messages import decode, encode, message, sparse
from ..world.launcher.launched import run_folder_of_environment
from .errors import SetupError

SETTINGS_VARIABLE = "MULTIWORLD_TRAINING"
FOLDER = "training"
"""Where below a launcher's folder of a run the record is."""


@message("checkpoint")
@sparse
@dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """``dir``: where; ``every_steps``: how often; ``keep``: how many are kept."""

    dir: str
    every_steps: int | None = None
    keep: int | None = None

    def __post_init__(self) -> None:
        if not self.dir:
            raise ValueError("dir is empty: give a folder for the checkpoints")
        for name in ("every_steps", "keep"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}: at least 1 is needed")


@message("training")
@sparse
@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Defaults of ``training.join``, which its arguments override. ``record``: the folder of the run's record."""

    min_replicas: int | None = None
    checkpoint: CheckpointSettings | None = None
    record: str | None = None

    def __post_init__(self) -> None:
        if self.min_replicas is not None and self.min_replicas < 1:
            raise ValueError(f"min_replicas is {self.min_replicas}: at least 1 is needed")

    def to_environment(self) -> dict[str, str]:
        """Return the variables that ``settings_of`` reads."""
        return {SETTINGS_VARIABLE: encode(self).decode()}


def settings_of(environment: Mapping[str, str] | None = None) -> TrainingSettings:
    """Return the settings that the environment holds. ``environment``: by default this process's.

    Without a record in them it is in the folder that the launcher has for this run (``--log-dir``), if it has one.
    Raises SetupError for a variable that holds something else.
    """
    variables: Mapping[str, str] = os.environ if environment is None else environment
    told = variables.get(SETTINGS_VARIABLE, "")
    try:
        settings = decode(TrainingSettings, told.encode()) if told else TrainingSettings()
    except MessageError as error:
        raise SetupError(
            f"the variable {SETTINGS_VARIABLE} holds no settings of a training: {error}. 'multiworld train' sets it; "
            "unset it, and give the settings to training.join"
        ) from error
    run_folder = run_folder_of_environment(variables)
    if settings.record is not None or not run_folder:
        return settings
    return TrainingSettings(
        min_replicas=settings.min_replicas, checkpoint=settings.checkpoint, record=os.path.join(run_folder, FOLDER)
    )
