"""Elastic serving: a model cut in stages, one world per edge, whose replicas come and go while requests flow."""

from __future__ import annotations
