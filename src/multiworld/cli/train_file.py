"""A configuration file of ``multiworld train``: what it may say, and the launcher's options that this means."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..serving.config.document import Document
from ..serving.config.problems import ConfigError, Problems
from ..serving.config.sections import Section
from ..training.settings import CheckpointSettings, TrainingSettings

FILES = (".yaml", ".yml", ".json")
MAX_BYTES = 1 << 20
OPTIONS: dict[str, tuple[str, Any]] = {
    "nproc_per_node": ("--nproc-per-node", int | str),
    "nnodes": ("--nnodes", int | str),
    "spares": ("--spares", int),
    "restart": ("--restart", str),
    "max_restarts": ("--max-restarts", int | str),
    "job": ("--rdzv-id", str),
    "rdzv_backend": ("--rdzv-backend", str),
    "rdzv_endpoint": ("--rdzv-endpoint", str),
    "lease_s": ("--lease-s", float),
    "progress_timeout_s": ("--progress-timeout", float),
    "page": ("--page", str),
    "log_dir": ("--log-dir", str),
}
"""The keys that are options of the launcher, and their types."""
EXAMPLE = """\
  program: train.py            # or module: package.train
  arguments: [--epochs, 3]
  nproc_per_node: 4            # replicas on each host
  nnodes: 1:4
  min_replicas: 2              # fewer wait for others
  checkpoint: {dir: checkpoints, every_steps: 100, keep: 3}
  record: records              # for multiworld train report
  environment: {OMP_NUM_THREADS: 1}"""


@dataclass(frozen=True, kw_only=True)
class TrainFile:
    """``options``: of the launcher; ``program``: what it runs, with ``-m`` before a module; ``environment``: added."""

    options: tuple[str, ...] = ()
    program: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def load(path: str) -> TrainFile:
    """Read a file. Raises ConfigError with all that is wrong in it, each with its line and key."""
    try:
        if os.path.getsize(path) > MAX_BYTES:
            raise ConfigError(path, [f" has more than {MAX_BYTES} bytes"])
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise ConfigError(path, [f" cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError as error:
        raise ConfigError(path, [f" is not UTF-8: {error.reason} at byte {error.start}"]) from None
    read = parse(path, text)
    program = read.program[-1]
    if len(read.program) == 1 and not os.path.isfile(program):
        raise ConfigError(
            path, [f" program: there is no file {program}: give a path relative to this file, or an absolute one"]
        )
    return read


def parse(source: str, text: str) -> TrainFile:
    """Return what a file says. Paths are relative to the folder of ``source``. Raises ConfigError."""
    document = Document.parse(source, text)
    problems = Problems(source, document.lines)
    section = Section(document.value, (), problems)
    folder = os.path.dirname(source)
    program = _program(section, folder)
    arguments = [_word(section, ("arguments", at), each) for at, each in enumerate(section.take("arguments", list, []))]
    options: list[str] = []
    for key, (option, kind) in OPTIONS.items():
        value = section.take(key, kind)
        if key == "nnodes" and isinstance(value, int):  # YAML takes 1:4 for 64, a number to the base of 60
            value = _range_in(text, document.lines.get((key,), 0)) or value
        if value is not None:
            options.append(f"{option}={os.path.join(folder, value) if key == 'log_dir' else value}")
    settings = _settings(section, folder)
    environment = _environment(section)
    section.finish()
    problems.raise_any()
    assert program is not None
    assert settings is not None
    said = settings.to_environment() if settings != TrainingSettings() else {}
    return TrainFile(
        options=tuple(options), program=program, arguments=tuple(arguments), environment={**environment, **said}
    )


def _range_in(text: str, line: int) -> str | None:
    """Return the range of hosts that is written behind the key on this line, None if it is a plain number."""
    lines = text.splitlines()
    matched = re.search(r"nnodes[\"']?\s*:\s*(\d+:\d+)", lines[line - 1]) if 0 < line <= len(lines) else None
    return None if matched is None else matched[1]


def _program(section: Section, folder: str) -> tuple[str, ...] | None:
    program, module = section.take("program", str), section.take("module", str)
    if (program is None) == (module is None):
        section.problem("program", "give either program (a path, such as train.py) or module (such as package.train)")
        return None
    return ("-m", module) if program is None else (os.path.join(folder, program),)


def _settings(section: Section, folder: str) -> TrainingSettings | None:
    min_replicas, record = section.take("min_replicas", int), section.take("record", str)
    if min_replicas is not None and min_replicas < 1:
        section.problem("min_replicas", f"is {min_replicas}: at least 1 is needed")
        min_replicas = None
    checkpoint = None
    saved = section.sub("checkpoint")
    if saved is not None:
        where = saved.need("dir", str, "?")
        every, keep = saved.take("every_steps", int), saved.take("keep", int)
        saved.finish()
        checkpoint = saved.build(
            CheckpointSettings, dir=os.path.join(folder, where) if where else where, every_steps=every, keep=keep
        )
    return section.build(
        TrainingSettings,
        min_replicas=min_replicas,
        checkpoint=checkpoint,
        record=None if record is None else os.path.join(folder, record),
    )


def _environment(section: Section) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in section.take("environment", dict, {}).items():
        if not isinstance(name, str) or not name or "=" in name:
            section.problem("environment", f"{name!r} is no name of a variable")
        else:
            found[name] = _word(section, ("environment", name), value)
    return found


def _word(section: Section, path: tuple[str | int, ...], value: Any) -> str:
    """Return text or a number as the word that a program gets."""
    if isinstance(value, bool):
        section.problems.add(path, f"is {str(value).lower()}: write text in quotation marks, such as '1' or 'true'")
    elif isinstance(value, int | float | str):
        return str(value)
    else:
        section.problems.add(path, "expected text or a number")
    return ""
