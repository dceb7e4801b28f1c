"""Launch functions and commands from programs and notebooks: for ``torch.distributed.launcher``, by the same names."""

from .elastic.launch.functions import LaunchConfig, ResultError, elastic_launch, launch_agent

__all__ = ["LaunchConfig", "ResultError", "elastic_launch", "launch_agent"]
