"""What a training can end in: one class per cause, each with what was wrong and what to do."""

from __future__ import annotations

import textwrap

from ..errors import MultiworldError, ReasonError


class TrainingError(MultiworldError):
    """The root of what ``multiworld.training`` raises on purpose, but for bad arguments (ValueError, TypeError)."""


class SetupError(TrainingError, ReasonError):
    """The ranks do not fit each other, or the job cannot be started so. Field: ``reason``, one sentence or two."""


class StepError(TrainingError, ReasonError):
    """The training loop was used in a way that would give wrong results. Field: ``reason``, one sentence or two."""


class PeerRaisedError(TrainingError):
    """The program raised on one rank, so the training ends with the same error on all ranks.

    Fields: ``rank`` (the launcher's, or the member's place), ``step``, ``error`` (type and message), ``traceback``.
    """

    def __init__(self, rank: int, step: int, error: str, traceback: str) -> None:
        super().__init__(rank, step, error, traceback)
        self.rank, self.step, self.error, self.traceback = rank, step, error, traceback

    def __str__(self) -> str:
        return (
            f"the program raised on rank {self.rank} in step {self.step}: {self.error}\nNo process was lost, so the "
            f"training ends on all ranks. There it came from:\n{_quoted(self.traceback).rstrip()}"
        )


class PoisonedStepError(TrainingError):
    """The program raised in the same step again and again. Fields: ``step``, ``tries``, ``error``, ``samples``."""

    def __init__(self, step: int, tries: int, error: str, samples: tuple[str, ...]) -> None:
        super().__init__(step, tries, error, samples)
        self.step, self.tries, self.error, self.samples = step, tries, error, samples

    def __str__(self) -> str:
        return (
            f"step {self.step} failed {self.tries} times, last with {self.error}. Its samples: "
            f"{', '.join(self.samples)}. Look at them, or leave them out of the dataset"
        )


class TooFewReplicasError(TrainingError):
    """The job waited for members, and not enough came. Fields: ``present``, ``needed``, ``waited_s`` (seconds)."""

    def __init__(self, present: int, needed: int, waited_s: float) -> None:
        super().__init__(present, needed, waited_s)
        self.present, self.needed, self.waited_s = present, needed, waited_s

    def __str__(self) -> str:
        return (
            f"{self.present} of at least {self.needed} replicas were there after {self.waited_s:.0f} s. "
            "Start more, lower min_replicas, or raise join_timeout_s"
        )


class ReplicaBrokenError(TrainingError):
    """A process of this process's own replica was lost, so this one holds only a part of the model, and ends.

    Fields: ``replica`` (its index), ``shard`` (this process's place in it), ``cause`` (what broke its world).
    """

    def __init__(self, replica: int, shard: int, cause: str) -> None:
        super().__init__(replica, shard, cause)
        self.replica, self.shard, self.cause = replica, shard, cause

    def __str__(self) -> str:
        return (
            f"replica {self.replica} lost a process, so its process {self.shard} ends, too: {self.cause} The other "
            "replicas go on. The launcher starts this replica again as long as its restarts last (--max-restarts)"
        )


class CheckpointError(TrainingError):
    """The root of what is wrong with a checkpoint that was to be loaded."""


class CheckpointDamagedError(CheckpointError):
    """A file of a checkpoint is not what was written. Fields: ``path`` (the checkpoint's), ``file``, ``problem``."""

    def __init__(self, path: str, file: str, problem: str) -> None:
        super().__init__(path, file, problem)
        self.path, self.file, self.problem = path, file, problem

    def __str__(self) -> str:
        return (
            f"checkpoint {self.path} is damaged: {self.file}: {self.problem}. "
            "Remove it, or restore that file; the checkpoints before it may still be whole"
        )


class NoCommonCheckpointError(CheckpointError):
    """Processes of a replica can read no checkpoint of the same step. Fields: ``directory``, ``step``."""

    def __init__(self, directory: str, step: int) -> None:
        super().__init__(directory, step)
        self.directory, self.step = directory, step

    def __str__(self) -> str:
        return (
            f"{self.directory} has no checkpoint up to step {self.step} that can be read here, and another process of "
            "this replica can read no later one. Give all hosts the same directory, or copy the missing files"
        )


class CheckpointVersionError(CheckpointError):
    """A later release wrote the checkpoint. Fields: ``path``, ``found`` (its format), ``newest`` (we can read)."""

    def __init__(self, path: str, found: int, newest: int) -> None:
        super().__init__(path, found, newest)
        self.path, self.found, self.newest = path, found, newest

    def __str__(self) -> str:
        return (
            f"checkpoint {self.path} has format {self.found}, and this release reads formats up to {self.newest}. "
            "Use the release that wrote it, or a later one"
        )


class CheckpointMismatchError(CheckpointError):
    """A checkpoint is of another model or program. Fields: ``path``, ``differences`` (a sentence each)."""

    def __init__(self, path: str, differences: tuple[str, ...]) -> None:
        super().__init__(path, differences)
        self.path, self.differences = path, differences

    def __str__(self) -> str:
        return (
            f"checkpoint {self.path} does not fit this program: {'; '.join(self.differences)}. "
            "Run the program that wrote it, or give Checkpoint another dir"
        )


class ProfileError(TrainingError):
    """The root of what is wrong with the profile of a model that was to be used."""


class ProfileFileError(ProfileError):
    """A file is no profile that can be read. Fields: ``source`` (its path), ``place`` (in it), ``problem``."""

    def __init__(self, source: str, place: str, problem: str) -> None:
        super().__init__(source, place, problem)
        self.source, self.place, self.problem = source, place, problem

    def __str__(self) -> str:
        return f"{self.source}: {f'{self.place}: ' if self.place else ''}{self.problem}"


class ProfileMismatchError(ProfileError):
    """A profile was measured for something else. Fields: ``source`` (its path), ``differences`` (a sentence each)."""

    def __init__(self, source: str, differences: tuple[str, ...]) -> None:
        super().__init__(source, differences)
        self.source, self.differences = source, differences

    def __str__(self) -> str:
        return (
            f"the profile {self.source} is not of this model: {'; '.join(self.differences)}. "
            "Measure again, or give the profile of this model"
        )


class TraceError(TrainingError):
    """A trace of failures makes no sense. Fields: ``source`` (its path or name), ``place`` (in it), ``problem``."""

    def __init__(self, source: str, place: str, problem: str) -> None:
        super().__init__(source, place, problem)
        self.source, self.place, self.problem = source, place, problem

    def __str__(self) -> str:
        return f"{self.source}: {f'{self.place}: ' if self.place else ''}{self.problem}"


class LayersLostError(TrainingError):
    """All members that held some layer were lost at once. Field: ``step``, of which the others have theirs."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step

    def __str__(self) -> str:
        return (
            f"before step {self.step} all members were lost that held some layer of the model, and no checkpoint was "
            "taken. Have checkpoints saved (training.join(..., checkpoint=training.Checkpoint(dir))), from which the "
            "training goes on then; or train with more nodes, or a larger tolerate=, so that more members hold each "
            "layer"
        )


class SampleError(TrainingError):
    """The dataset or the collate function raised on samples of one micro-batch.

    Fields: ``step``, ``micro_batch``, ``samples`` (their ids: one, or all of the micro-batch if it is not known which
    one failed), ``error`` (type and message), ``traceback`` (of the process that loaded them).
    """

    def __init__(self, step: int, micro_batch: int, samples: tuple[str, ...], error: str, traceback: str) -> None:
        super().__init__(step, micro_batch, samples, error, traceback)
        self.step, self.micro_batch, self.samples = step, micro_batch, samples
        self.error, self.traceback = error, traceback

    def __str__(self) -> str:
        samples = f"sample {self.samples[0]}" if len(self.samples) == 1 else f"samples {', '.join(self.samples)}"
        return (
            f"{samples} of step {self.step} (micro-batch {self.micro_batch}) cannot be loaded: {self.error}. Correct "
            f"the dataset, or leave them out of it.\nThere it came from:\n{_quoted(self.traceback).rstrip()}"
        )


class LoaderWorkerError(TrainingError):
    """The worker processes of a loader end again and again, or give nothing.

    Fields: ``what`` (one sentence), ``samples`` (ids of what they were loading).
    """

    def __init__(self, what: str, samples: tuple[str, ...]) -> None:
        super().__init__(what, samples)
        self.what, self.samples = what, samples

    def __str__(self) -> str:
        return (
            f"{self.what} They were loading samples {', '.join(self.samples) or '(none)'}. Look at the memory of this "
            "host (the kernel kills what takes too much), or load these samples with num_workers=0 to see what happens"
        )


class BadStepError(TrainingError):
    """A step was bad, and the job was told to end then, or nothing else helped. The same error on all ranks.

    Fields: ``step``, ``reason``, ``num_in_a_row``: how many bad steps there were one after the other.
    """

    def __init__(self, step: int, reason: str, num_in_a_row: int) -> None:
        super().__init__(step, reason, num_in_a_row)
        self.step, self.reason, self.num_in_a_row = step, reason, num_in_a_row

    def __str__(self) -> str:
        if self.num_in_a_row > 1:
            return (
                f"step {self.step} is bad, as were the {self.num_in_a_row - 1} before: {self.reason}. Neither skipping "
                "nor rolling back helps any more: go back to an older checkpoint, or lower the learning rate"
            )
        return (
            f"step {self.step} is bad: {self.reason}. No optimizer ran in it. Look at its data and the learning rate, "
            "or give join() on_bad_step='skip' or 'rollback'"
        )


class MiscomputingError(TrainingError):
    """This process gave wrong results again after it got its state anew. Fields: ``rank``, ``step``, ``reason``."""

    def __init__(self, rank: int, step: int, reason: str) -> None:
        super().__init__(rank, step, reason)
        self.rank, self.step, self.reason = rank, step, reason

    def __str__(self) -> str:
        return (
            f"rank {self.rank} is wrong again in step {self.step}: {self.reason}. The others go on without it. Its "
            "host may compute or store wrongly: test its memory and its device, or drain it"
        )


class PlanError(TrainingError):
    """The root of what makes it impossible to lay a model over nodes."""


class ModelTooLargeError(PlanError):
    """These nodes cannot hold the model, more of them could.

    Fields: ``model``, ``needed_bytes`` (with activations of one micro-batch), ``num_nodes`` (there are),
    ``node_bytes`` (all devices of one), ``smallest``: how many nodes would do.
    """

    def __init__(self, model: str, needed_bytes: int, num_nodes: int, node_bytes: int, smallest: int) -> None:
        super().__init__(model, needed_bytes, num_nodes, node_bytes, smallest)
        self.model, self.needed_bytes, self.num_nodes = model, needed_bytes, num_nodes
        self.node_bytes, self.smallest = node_bytes, smallest

    def __str__(self) -> str:
        return (
            f"{self.model} needs at least {_gib(self.needed_bytes)} (parameters, gradients, the optimizer's state and "
            f"one micro-batch), and {self.num_nodes} x {_gib(self.node_bytes)} = "
            f"{_gib(self.num_nodes * self.node_bytes)} cannot hold that with whole layers on each node. "
            f"{self.smallest} of these nodes would do: start more, or take a smaller model or micro-batch"
        )


class LayerTooLargeError(PlanError):
    """No device can hold this layer. Fields: ``model``, ``layer``, ``needed_bytes``, ``device_bytes``."""

    def __init__(self, model: str, layer: str, needed_bytes: int, device_bytes: int) -> None:
        super().__init__(model, layer, needed_bytes, device_bytes)
        self.model, self.layer, self.needed_bytes, self.device_bytes = model, layer, needed_bytes, device_bytes

    def __str__(self) -> str:
        return (
            f"layer {self.layer} of {self.model} needs {_gib(self.needed_bytes)} with one micro-batch, and a device "
            f"has {_gib(self.device_bytes)}: no number of nodes would do. Cut it into smaller layers, take a smaller "
            "micro-batch, or shard it over several devices of a node"
        )


class TooFewNodesError(PlanError):
    """Fewer nodes than the smallest pipeline needs. Fields: ``model``, ``present``, ``needed``."""

    def __init__(self, model: str, present: int, needed: int) -> None:
        super().__init__(model, present, needed)
        self.model, self.present, self.needed = model, present, needed

    def __str__(self) -> str:
        return (
            f"a pipeline of {self.model} needs {self.needed} nodes, and there are {self.present}. "
            f"Start {self.needed - self.present} more; a job that waits for them loses nothing"
        )


class GlobalBatchTooSmallError(PlanError):
    """Fewer micro-batches in a step than there must be pipelines.

    Fields: ``num_micro_batches``, ``num_pipelines`` (at least), ``micro_batch``: samples of one.
    """

    def __init__(self, num_micro_batches: int, num_pipelines: int, micro_batch: int) -> None:
        super().__init__(num_micro_batches, num_pipelines, micro_batch)
        self.num_micro_batches, self.num_pipelines, self.micro_batch = num_micro_batches, num_pipelines, micro_batch

    def __str__(self) -> str:
        micro_batches = "1 micro-batch" if self.num_micro_batches == 1 else f"{self.num_micro_batches} micro-batches"
        return (
            f"a global batch of {self.num_micro_batches * self.micro_batch} samples is {micro_batches} of "
            f"{self.micro_batch}, and {self.num_pipelines} pipelines need at least one each: "
            f"{self.num_pipelines} x {self.micro_batch} = {self.num_pipelines * self.micro_batch} samples. Raise "
            "global_batch, or lower micro_batch or tolerate"
        )


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB" if size_bytes >= 2**30 // 10 else f"{size_bytes / 2**20:.2f} MiB"


def _quoted(traceback: str) -> str:
    """Return a traceback for a message, so that nobody takes it for the traceback of the error that quotes it."""
    return textwrap.indent(traceback.replace("Traceback (most recent call last):", "Traceback:"), "  ")
