"""What ``pyproject.toml`` cannot say: the native core and the compiled modules, both of which may be missing."""

from __future__ import annotations

import os
import runpy
import sysconfig
import threading
import warnings
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "src"
NATIVE = SOURCES / "multiworld/native"
NAMES = runpy.run_path(str(NATIVE / "compiled.py"))
GENERATED = runpy.run_path(str(NATIVE / "generated.py"))


class BuildExt(build_ext):
    """Adds the compiled modules, which takes mypyc a while, only when they are to be built."""

    def run(self) -> None:
        self._remove_former()
        self.distribution.ext_modules = [core, remote, *compiled_modules()]
        self.swig_opts: Any = None  # so that it can be finalized again
        self.finalize_options()
        super().run()

    def build_extensions(self) -> None:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            compile_in_parallel(self.compiler, pool)
            super().build_extensions()

    def _remove_former(self) -> None:
        """Remove what was compiled of earlier sources: it would be packed, or found in the place of a new module."""
        package, suffix = NAMES["PACKAGE"], sysconfig.get_config_var("EXT_SUFFIX")
        modules = [f"{package}.{name}" for name in (*NAMES["MODULES"], "native.core", "native.remote")]
        wanted = {NAMES["group_name"]() + NAMES["SUFFIX"], *(module.replace(".", "/") for module in modules)}
        for folder in (SOURCES, Path(self.build_lib)):
            for found in [*folder.glob(f"{package}_*{suffix}"), *folder.glob(f"{package}/**/*{suffix}")]:
                if found.relative_to(folder).as_posix().removesuffix(suffix) not in wanted:
                    found.unlink()


def compile_in_parallel(compiler: Any, pool: Executor) -> None:
    """Have all processors compile: the compiled modules are one extension, whose sources setuptools takes in turn.

    It takes several extensions at once, each in a thread of its own.
    """
    compile_all, compile_one = compiler.compile, compiler._compile
    here = threading.local()

    def compile_soon(*arguments: Any) -> None:
        here.running.append(pool.submit(compile_one, *arguments))

    def compile_together(sources: Sequence[str], **options: Any) -> Any:
        here.running = []
        objects = compile_all(sources, **options)
        for each in here.running:
            each.result()
        return objects

    compiler._compile, compiler.compile = compile_soon, compile_together


def compiled_modules() -> list[Extension]:
    """Have mypyc write C for the modules that ``native.compiled`` names; without it there are none."""
    if NAMES["are_sources_wanted"]():
        return []
    try:
        from mypyc.build import mypycify
    except ImportError as error:
        warnings.warn(f"the modules are not compiled, as mypyc is missing: {error}", stacklevel=1)
        return []
    paths = [str(NAMES["source_of"](module).relative_to(HERE)) for module in NAMES["MODULES"]]
    try:
        extensions = mypycify(
            ["--config-file=mypyc.ini", *paths],
            group_name=NAMES["group_name"](),
            opt_level="3",
            debug_level="0",
            multi_file=True,
        )
        for extension in extensions:
            extension.optional = True
            mend(extension)
    except SystemExit as error:  # it has said why
        warnings.warn(f"the modules are not compiled: mypyc ended with {error.code}", stacklevel=1)
        return []
    except GENERATED["UnknownCodeError"] as error:
        warnings.warn(f"the modules are not compiled: this release of mypyc is not known: {error}", stacklevel=1)
        return []
    return list(extensions)


def mend(extension: Extension) -> None:
    """Have what mypyc wrote be fit for several threads; all of it has names of this kind, its library has not."""
    for path in map(Path, extension.sources):
        if path.name.startswith("__native"):
            path.write_text(GENERATED["made_safe"](path.read_text(encoding="utf-8")), encoding="utf-8")


def in_c(name: str) -> Extension:
    return Extension(
        f"multiworld.native.{name}",
        sources=[f"src/multiworld/native/{name}.c"],
        extra_compile_args=["-O2", "-std=c11", "-Wall", "-Wextra"],
        optional=True,
    )


core, remote = in_c("core"), in_c("remote")
os.chdir(HERE)  # mypyc names modules by their paths from here
setup(ext_modules=[core, remote], cmdclass={"build_ext": BuildExt})
