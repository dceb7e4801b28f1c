"""Fault injection for programs that use worlds: real processes, simulated hosts, a relay, plans of faults, leak checks.

Nothing here needs a test framework. ``multiworld.testing.worker`` is what the workers themselves import.
"""

from .crew import Call, Crew, Launch, Member, Outcome, launch_workers
from .deadlines import Deadline, scaled, wait_until
from .faults import Fault, FaultKind, FaultPlan, shown_on_failure
from .hosts import Host, HostError, Network
from .hosts import available as hosts_available
from .mpi_launcher import JobFailedError, MpiLauncher
from .processes import Report, Worker, WorkerFailedError
from .relay import Relay
from .resources import LeakError, Resources, check_returned, check_returned_async, measure, trim
from .worker_group import WorkerGroup

__all__ = [
    "Call",
    "Crew",
    "Deadline",
    "Fault",
    "FaultKind",
    "FaultPlan",
    "Host",
    "HostError",
    "JobFailedError",
    "Launch",
    "LeakError",
    "Member",
    "MpiLauncher",
    "Network",
    "Outcome",
    "Relay",
    "Report",
    "Resources",
    "Worker",
    "WorkerFailedError",
    "WorkerGroup",
    "check_returned",
    "check_returned_async",
    "hosts_available",
    "launch_workers",
    "measure",
    "scaled",
    "shown_on_failure",
    "trim",
    "wait_until",
]
