"""Where the output of each worker goes, as torch's ``LogsSpecs`` decide it: no attempt's files are ever another's."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, LogsSpecs, Std

from ...process.logs.route import Route
from ..job.assignment import Assignment
from ..job.options import LogOptions

SPECS_GROUP = "torchrun.logs_specs"


@dataclass(frozen=True, kw_only=True)
class WorkerPlaces:
    """The places of one worker process. ``error_file`` is empty where no files are wanted.

    ``variables``: what the ``LogsSpecs`` have set in the worker's environment, ``TORCHELASTIC_ERROR_FILE`` included.
    """

    stdout: Route
    stderr: Route
    error_file: str
    variables: dict[str, str] = field(default_factory=dict)


class Places:
    """The places of all workers of one host.

    The attempt of a local rank is how often it was started here before. ``LogsSpecs.reify`` clears the folder of the
    attempt that it is asked for, so it is asked once for each, for all local ranks, and what it said is kept for those
    who come to that attempt later.

    Raises ValueError for log options that mean nothing, OSError if the folder cannot be made.
    """

    def __init__(self, options: LogOptions, *, role: str, run_id: str, num_workers: int) -> None:
        self._options, self._role, self._run_id, self._num_workers = options, role, run_id, num_workers
        self.temporary_dir: str | None = None
        self._specs = self._make_specs(options) if options.specs is None else options.specs
        self._attempts: Counter[int] = Counter()
        self._error_folders: set[Path] = set()
        self._dests: dict[int, tuple[LogsDest, dict[int, dict[str, str]]]] = {}
        self.run_dir: str | None = None
        """Where the run's files are, from the first start on; None where no files are wanted."""

    def _make_specs(self, options: LogOptions) -> LogsSpecs:
        kind, redirects, tee = _find_specs(options), Std.from_str(options.redirects), Std.from_str(options.tee)
        if options.log_dir is None and kind is DefaultLogsSpecs:
            self.temporary_dir = tempfile.mkdtemp(prefix="multiworld_")
        return kind(
            log_dir=options.log_dir or self.temporary_dir,
            redirects=redirects,
            tee=tee,
            local_ranks_filter=set(options.local_ranks_filter) if options.local_ranks_filter else None,
        )

    def open(self, assignment: Assignment) -> WorkerPlaces:
        """Return the places of a worker that is about to be started."""
        local_rank = assignment.local_rank
        attempt = self._attempts[local_rank]
        if attempt not in self._dests:
            self._dests[attempt] = self._reify(attempt, assignment)
        dest, variables = self._dests[attempt]
        error_file = dest.error_files.get(local_rank, "")
        error_file = "" if error_file == os.devnull else error_file
        if error_file:
            _make_room(Path(error_file), attempt)
            self._error_folders.add(Path(error_file).parent)
        self._attempts[local_rank] += 1
        return WorkerPlaces(
            stdout=self._route(
                dest.stdouts, dest.tee_stdouts, local_rank, dest.filtered_stdout, self._options.duplicate_stdout_filters
            ),
            stderr=self._route(
                dest.stderrs, dest.tee_stderrs, local_rank, dest.filtered_stderr, self._options.duplicate_stderr_filters
            ),
            error_file=error_file,
            variables=variables[local_rank],
        )

    def take_back(self, local_rank: int) -> None:
        """The worker for which the last ones were opened was not started: the next one gets the same."""
        self._attempts[local_rank] -= 1

    def discard_empty(self) -> None:
        """Remove the folders of this run in which nothing was written."""
        depth = 3 if type(self._specs) is DefaultLogsSpecs else 1  # run, attempt, rank; others have theirs
        for error_folder in self._error_folders:
            with suppress(OSError):  # there is something in it
                for folder in (error_folder, *error_folder.parents)[:depth]:
                    folder.rmdir()

    def discard_temporary(self) -> None:
        """Remove the folder that was made because the user named none."""
        if self.temporary_dir is not None:
            shutil.rmtree(self.temporary_dir, ignore_errors=True)

    def _reify(self, attempt: int, assignment: Assignment) -> tuple[LogsDest, dict[int, dict[str, str]]]:
        given = {rank: self._variables(rank, attempt, assignment) for rank in range(self._num_workers)}
        envs = {rank: dict(variables) for rank, variables in given.items()}
        dest = self._specs.reify(envs)
        for local_rank, error_file in dest.error_files.items():
            if error_file != os.devnull:
                folder = Path(error_file).parent
                self.run_dir = self.run_dir or str(folder.parent.parent)
                if local_rank != assignment.local_rank:
                    with suppress(OSError):  # made again when that rank comes to this attempt: most never do
                        folder.rmdir()
        added = {rank: dict(envs[rank].items() - given[rank].items()) for rank in envs}
        return dest, added

    def _variables(self, local_rank: int, attempt: int, assignment: Assignment) -> dict[str, str]:
        """Return what ``LogsSpecs`` may look at for a local rank; of the neighbours, what follows from their order."""
        offset = local_rank - assignment.local_rank
        return {
            "LOCAL_RANK": str(local_rank),
            "RANK": str(assignment.rank + offset),
            "GROUP_RANK": str(assignment.node_rank),
            "ROLE_RANK": str(assignment.role_rank + offset),
            "ROLE_NAME": self._role,
            "LOCAL_WORLD_SIZE": str(assignment.local_world_size),
            "WORLD_SIZE": str(assignment.world_size),
            "GROUP_WORLD_SIZE": str(assignment.num_nodes),
            "ROLE_WORLD_SIZE": str(assignment.role_world_size),
            "MASTER_ADDR": assignment.master_addr,
            "MASTER_PORT": str(assignment.master_port),
            "TORCHELASTIC_RESTART_COUNT": str(attempt),
            "TORCHELASTIC_RUN_ID": self._run_id.replace(os.sep, "_"),  # a part of a folder's name
        }

    def _route(
        self, paths: dict[int, str], teed: dict[int, str], local_rank: int, filtered: str, needles: tuple[str, ...]
    ) -> Route:
        path = paths.get(local_rank, "")
        file = path if path not in ("", os.devnull) else None
        duplicates = bool(file and local_rank in teed and needles and filtered)
        return Route(
            file=file,
            on_console=path == "" or (file is not None and local_rank in teed),
            filtered=filtered if duplicates else None,
            needles=needles if duplicates else (),
        )


def _make_room(error_file: Path, attempt: int) -> None:
    """Make the folder; set aside an earlier attempt's error, which specs that know no attempts would put there too."""
    error_file.parent.mkdir(parents=True, exist_ok=True)
    if error_file.exists():
        error_file.rename(error_file.with_name(f"{error_file.name}.before_{attempt}"))


def _find_specs(options: LogOptions) -> type[LogsSpecs]:
    if options.logs_specs is None:
        return DefaultLogsSpecs
    found = list(entry_points(group=SPECS_GROUP, name=options.logs_specs))
    if not found:
        raise ValueError(
            f"--logs-specs {options.logs_specs}: no installed package has an entry point of this name in the group "
            f"{SPECS_GROUP!r}"
        )
    kind: type[LogsSpecs] = found[0].load()
    return kind
