"""Launch functions and commands from programs and notebooks: for ``torch.distributed.launcher``, by the same names."""

from .elastic.functions import LaunchConfig, elastic_launch, launch_agent

__all__ = ["LaunchConfig", "elastic_launch", "launch_agent"]
