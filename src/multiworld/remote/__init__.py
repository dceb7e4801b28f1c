"""Remote tensors: one script on the master drives tensors that live on other nodes, as plain PyTorch code.

See ``docs/remote.md``.
"""

from .capturing.capture import capture
from .capturing.compiling import compile_function as compile  # noqa: A004 (as torch.compile)
from .capturing.step import Step
from .collectives.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)
from .connecting.connect import connect
from .data_parallel.replicate import Replicas, replicate
from .device_name.use import use_device_name
from .errors import (
    CallNotDeclaredError,
    CaptureError,
    ConnectError,
    ConnectionEndedError,
    DeviceNameError,
    NodeDeadError,
    NodeMemoryError,
    NodeReturnsError,
    NotReplayableWarning,
    PlaceMismatchError,
    RemoteError,
    RemoteOperationError,
    SyncPointError,
    UnsupportedOperationError,
)
from .events import NodeEvent, NodeJoined, NodeLost
from .master.local import local
from .master.node import Node
from .master.nodes import Nodes
from .master.streams import Event, Stream
from .protocol.calls import DeclaredCall
from .recovery.node_recovery import RecoveryStatistics
from .recovery.recoverable import Recoverable, recoverable
from .session.profile import Profile, profile
from .session.sync_points import no_sync
from .tensor.remote_tensor import RemoteTensor

__all__ = [
    "CallNotDeclaredError",
    "CaptureError",
    "ConnectError",
    "ConnectionEndedError",
    "DeclaredCall",
    "DeviceNameError",
    "Event",
    "Node",
    "NodeDeadError",
    "NodeEvent",
    "NodeJoined",
    "NodeLost",
    "NodeMemoryError",
    "NodeReturnsError",
    "Nodes",
    "NotReplayableWarning",
    "PlaceMismatchError",
    "Profile",
    "Recoverable",
    "RecoveryStatistics",
    "RemoteError",
    "RemoteOperationError",
    "RemoteTensor",
    "Replicas",
    "Step",
    "Stream",
    "SyncPointError",
    "UnsupportedOperationError",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "capture",
    "compile",
    "connect",
    "gather",
    "local",
    "no_sync",
    "profile",
    "recoverable",
    "reduce",
    "reduce_scatter",
    "replicate",
    "scatter",
    "use_device_name",
]
