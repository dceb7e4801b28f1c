"""Finds the pipeline that a command line names: in a Python file or module, or in a YAML or JSON file."""

from .load import load_pipeline, read_file
from .models import Resolver, resolve_model
from .pipeline_file import NAME, CutPlan, PipelineFile
from .problems import ConfigError

__all__ = ["NAME", "ConfigError", "CutPlan", "PipelineFile", "Resolver", "load_pipeline", "read_file", "resolve_model"]
