"""Run a Python program in this interpreter as if it had been started with it, and end the interpreter as it would."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import importlib
import io
import json
import os
import pkgutil
import runpy
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import SourceFileLoader
from typing import NoReturn

from .entrypoint import Entrypoint, EntrypointKind

CANNOT_OPEN = 2
OUR_FILES = frozenset({__file__, runpy.__file__, "<frozen runpy>"})


def prepare(entrypoint: Entrypoint, arguments: Sequence[str], base_path: Sequence[str]) -> Callable[[], object]:
    """Set what a program finds when it starts, and return what runs it: a SCRIPT, a MODULE or a FUNCTION.

    ``base_path`` is ``sys.path`` but for the first entry of a script or a module.
    """
    if entrypoint.kind is EntrypointKind.FUNCTION:
        sys.path[:] = base_path
        sys.argv[:] = [entrypoint.named or entrypoint.target]
        return partial(_call, entrypoint.target, arguments)
    is_module = entrypoint.kind is EntrypointKind.MODULE
    switches = ["-u", "-m"] if is_module else ["-u"]
    sys.orig_argv = [sys.executable, *switches, entrypoint.target, *arguments]
    sys.path[:] = base_path
    main = new_main()
    if is_module:
        return _module_runner(entrypoint.target, arguments)
    return _script_runner(main, entrypoint.target, arguments)


def new_main() -> types.ModuleType:
    """Return the empty module in which a program is to run, in place of the one of this interpreter's own program."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    if "__mp_main__" in sys.modules:  # what classes of the program are called in messages between its processes
        sys.modules["__mp_main__"] = main
    return main


def function_at(place: str) -> Callable[..., object]:
    """Import the function at ``"module:function"``."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]


def run_to_the_end(
    run: Callable[[], object], *, announce: Callable[[], object], ends_quickly: bool = False
) -> NoReturn:
    """Run what ``prepare`` returned, and end the process with the program's exit status.

    Threads are awaited, ``atexit`` functions run, files flushed: the interpreter is taken down in earnest. But nothing
    returns or is raised to the caller, whose frames may belong to a launcher that must not go on in this process.
    ``announce`` is called first: from then on a signal is the program's. ``ends_quickly``: the interpreter is not
    taken down. That writes to, and so copies, every page that is shared with the fork server: 0.25 s with torch, during
    which peers take the process for alive. ``multiprocessing`` ends its forked processes in the same way.
    """
    interrupted, status = _outcome(run, announce)
    if ends_quickly:
        _end_quickly(status)
    if interrupted:
        _die_of_interrupt_at_exit()
        status = signal.SIGINT
    ctypes.pythonapi.Py_Exit(ctypes.c_int(status))  # what Python does for ``sys.exit`` at any depth of calls
    raise AssertionError("Py_Exit returned")


def _call(place: str, arguments: Sequence[str]) -> None:
    function_at(place)(*map(json.loads, arguments))


def _end_quickly(status: int) -> NoReturn:
    try:
        threading._shutdown()  # type: ignore[attr-defined] # wait for threads that are no daemons
        atexit._run_exitfuncs()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
            ctypes.CDLL(None).fflush(None)
        os._exit(status)


def _module_runner(name: str, arguments: Sequence[str]) -> Callable[[], object]:
    sys.argv[:] = ["-m", *arguments]
    _put_first(os.getcwd())
    return partial(_run_as_main, name)  # which puts the module's file into argv


def _script_runner(main: types.ModuleType, path: str, arguments: Sequence[str]) -> Callable[[], object]:
    sys.argv[:] = [path, *arguments]
    if os.path.isdir(path) or _is_archive(path):
        sys.path.insert(0, path)
        return partial(_run_as_main, "__main__", alter_argv=False)
    _put_first(os.path.dirname(os.path.realpath(path)))
    return partial(_run_file, main, path)


def _put_first(folder: str) -> None:
    if not getattr(sys.flags, "safe_path", False):  # since Python 3.11
        sys.path.insert(0, folder)


def _run_as_main(name: str, *, alter_argv: bool = True) -> None:
    # What ``python -m`` calls, and with a folder or an archive ``python`` itself. runpy.run_module leaves another
    # __main__ behind when it returns, so that neither threads nor exit functions of the program would find theirs.
    runpy._run_module_as_main(name, alter_argv)  # type: ignore[attr-defined]


def _run_file(main: types.ModuleType, path: str) -> None:
    full_path = os.path.join(os.getcwd(), path.removeprefix("./"))  # the one of tracebacks, not made any prettier
    try:
        with io.open_code(full_path) as file:
            code = pkgutil.read_code(file)
            if code is None:  # not a compiled one
                file.seek(0)
                content = file.read()
    except OSError as error:
        text = f"{sys.executable}: can't open file {full_path!r}: [Errno {error.errno}] {error.strerror}\n"
        sys.stderr.write(text)
        raise SystemExit(CANNOT_OPEN) from None
    main.__dict__.update(__file__=full_path, __cached__=None, __loader__=SourceFileLoader("__main__", full_path))
    if code is None:
        code = compile(content, full_path, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _is_archive(path: str) -> bool:
    return os.path.isfile(path) and not path.endswith(".py") and pkgutil.get_importer(path) is not None


def _outcome(run: Callable[[], object], announce: Callable[[], object]) -> tuple[bool, int]:
    """Return whether the program was interrupted, and its exit status; report its error as Python does."""
    try:
        announce()
        run()
    except SystemExit as stop:
        return False, _exit_status(stop.code)
    except BaseException as error:
        try:
            _report(error)
        except SystemExit as stop:  # of the program's own hook
            return False, _exit_status(stop.code)
        return type(error) is KeyboardInterrupt, 1
    return False, 0


def _exit_status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    with contextlib.suppress(OSError, ValueError, AttributeError):  # no place to write to
        sys.stdout.flush()
        sys.stderr.write(f"{code}\n")
    return 1


def _report(error: BaseException) -> None:
    """Show the error with the program's own frames only."""
    trace = _own_frames(error)
    error = error.with_traceback(trace)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    setattr(sys, "last_exc", error)  # noqa: B010 - of Python 3.12, harmless before
    try:
        sys.excepthook(type(error), error, trace)
    except SystemExit:
        raise
    except BaseException as failure:
        sys.stderr.write("Error in sys.excepthook:\n")
        failure.__context__ = None  # it is shown below
        traceback.print_exception(type(failure), failure, _own_frames(failure))
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, trace)


def _own_frames(error: BaseException) -> types.TracebackType | None:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in OUR_FILES:
        trace = trace.tb_next
    return trace


def _die_of_interrupt_at_exit() -> None:
    """Have the C library call ``raise(status)`` when the interpreter is down: who waits for us, a shell, must see it.

    Without glibc's ``on_exit`` the exit status is that number.
    """
    library = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):
        library.on_exit(ctypes.cast(library["raise"], ctypes.c_void_p), None)
