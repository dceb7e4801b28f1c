"""What ``pyproject.toml`` cannot say: the native core and the compiled modules, both of which may be missing."""

from __future__ import annotations

import os
import runpy
import warnings
from pathlib import Path

from setuptools import Extension, setup

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "src"

core = Extension(
    "multiworld.native.core",
    sources=["src/multiworld/native/core.c"],
    extra_compile_args=["-O2", "-std=c11", "-Wall", "-Wextra"],
    optional=True,
)


def compiled_modules() -> list[Extension]:
    """Have mypyc write C for the modules that ``native.compiled`` names; without it there are none."""
    for left in SOURCES.glob("multiworld_*__mypyc*"):  # of earlier sources
        left.unlink()
    if os.environ.get("MULTIWORLD_NATIVE") in ("0", "core"):
        return []
    try:
        from mypyc.build import mypycify
    except ImportError as error:
        warnings.warn(f"the modules are not compiled, as mypyc is missing: {error}", stacklevel=1)
        return []
    names = runpy.run_path(str(SOURCES / "multiworld/native/compiled.py"))
    paths = [str(names["source_of"](module).relative_to(HERE)) for module in names["MODULES"]]
    try:
        extensions = mypycify(
            ["--config-file=mypyc.ini", *paths],
            group_name=names["group_name"](),
            opt_level="3",
            debug_level="0",
            multi_file=True,
        )
    except SystemExit as error:  # it has said why
        warnings.warn(f"the modules are not compiled: mypyc ended with {error.code}", stacklevel=1)
        return []
    for extension in extensions:
        extension.optional = True
    return list(extensions)


os.chdir(HERE)  # mypyc names modules by their paths from here
setup(ext_modules=[core, *compiled_modules()])
