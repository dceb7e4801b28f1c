"""What is asked of a running deployment, and how it is answered."""

from __future__ import annotations

import asyncio

from ..member.files import list_files, read_piece
from .client import questions
from .controller import Controller


async def answer(controller: Controller, question: questions.ControllerQuestion) -> questions.ControllerAnswer:
    """Raises what the controller raises: DeploymentError, or ValueError for what makes no sense."""
    operations = controller.operations
    match question:
        case questions.StatusOf():
            return questions.StatusTold(status=controller.status())
        case questions.MetricsOf():
            return questions.MetricsTold(gateways=controller.gateway_metrics())
        case questions.EventsSince():
            return questions.EventsTold(events=tuple(controller.history.since(question.since)))
        case questions.LinesOfMembers():
            last = None if question.last is None else max(0, question.last)
            return questions.MembersLines(members=await controller.lines(question.of, since=question.since, last=last))
        case questions.ListFiles():
            return questions.FilesFound(files=await asyncio.to_thread(list_files, controller.spec.folder))
        case questions.ReadFile():
            piece = await asyncio.to_thread(read_piece, controller.spec.folder, question.name, question.offset)
            return questions.FilePiece(piece=piece)
        case questions.UpdateStage():
            return await _update(controller, question)
        case questions.ScaleStage():
            await operations.scale(
                question.stage,
                question.replicas,
                reason="ordered by a command",
                force=question.force,
                timeout_s=_timeout(question),
            )
        case questions.DrainReplica():
            await operations.drain(question.replica, scale_down=question.scale_down, timeout_s=_timeout(question))
        case questions.TuneStage():
            given = {"batch_max_size": question.batch_max_size, "batch_max_wait_s": question.batch_max_wait_s}
            operations.tune(question.stage, **{name: value for name, value in given.items() if value is not None})
        case questions.StopAll():
            controller.stop_asked.set()
    return questions.Done()


def _timeout(question: questions.ScaleStage | questions.DrainReplica | questions.UpdateStage) -> float | None:
    """Return how long to wait for the end of it; None is not at all."""
    return question.timeout_s if question.wait else None


async def _update(controller: Controller, question: questions.UpdateStage) -> questions.Updated:
    version = await controller.operations.update(
        question.stage,
        question.weights,
        parallel=question.parallel,
        settle_s=question.settle_s,
        timeout_s=_timeout(question),
    )
    return questions.Updated(version=version)
