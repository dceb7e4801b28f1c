"""The processes of a deployment on each host: forked, watched and ended by one, on a controller's orders."""

from .client import ControllerCalls, ControllerLostError, ask, conversation
from .deployment_file import DeploymentFile, DeploymentRecord, deployments_dir, find_deployment, list_deployments
from .host import Host
from .kept_host import KeptHost
from .options import HostOptions
from .order import Order
from .reception import Reception
from .start import HostHandle, start_host

__all__ = [
    "ControllerCalls",
    "ControllerLostError",
    "DeploymentFile",
    "DeploymentRecord",
    "Host",
    "HostHandle",
    "HostOptions",
    "KeptHost",
    "Order",
    "Reception",
    "ask",
    "conversation",
    "deployments_dir",
    "find_deployment",
    "list_deployments",
    "start_host",
]
