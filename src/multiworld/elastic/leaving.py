"""Have this host's agent leave its job, so that the others go on: a drain that its own host asks for."""

from __future__ import annotations

from .control.client import ControlError, Session
from .control.messages import Done, Drain, StatusOf
from .job.status import JobStatus


def leave(job: str, *, host: str, pid: int) -> bool:
    """Ask the coordinator, over any agent of this host. ``pid``: of the agent that is to leave.

    Returns False if nobody answers, or the job refuses since too few would be left. Takes some 15 s at most.
    """
    try:
        with Session() as session:
            talk = session.connect_here(job)
            agents = talk.ask(StatusOf(), JobStatus).agents
            own = next((each.id for each in agents if each.hostname == host and each.pid == pid), None)
            if own is None:
                return False
            talk.ask(Drain(agent=own), Done)
    except ControlError:
        return False
    return True
