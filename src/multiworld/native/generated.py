"""Mend the C that mypyc writes: for several threads, for what runs while an object goes, and for later Pythons.

It supposes one thread where there is an interpreter lock. But what goes may be the last reference to a tensor, whose
end lets go of that lock for a moment, or to something with a finalizer in Python. mypyc 2.4

- lets an attribute that is assigned to point to its former value while that ends: who reads it meanwhile has an object
  that does not exist any more. Here the new value is in place before the former one ends;
- has the environment of a closure, or a coroutine, wait to be used again before what it holds has ended: another
  thread takes it, and loses what it puts in. Here it waits once it is empty;
- hands an exception on to what a coroutine awaits in three parts, which Python deprecates from 3.12 on: where warnings
  are errors, a task that is cancelled gets the warning instead. Here it hands it on whole.

``setup.py`` runs this module where the package's requirements are missing: it imports nothing of the package.
"""

from __future__ import annotations

import re

DEALLOCATION = re.compile(
    r"^    if \((?P<slot>\w+_free_instance) == NULL\) \{\n"
    r"        (?P=slot) = self;\n"
    r"(?P<clearing>(?:        [^\n]*\n)*?)"
    r"        return;\n"
    r"    \}\n"
    r"(?P<begin>    CPy_TRASHCAN_BEGIN\(self, \w+\)\n)"
    r"    \w+_clear\(\(PyObject \*\)self\);\n"
    r"    Py_TYPE\(self\)->tp_free\(\(PyObject \*\)self\);\n"
    r"(?P<end>    CPy_TRASHCAN_END\(self\)\n)",
    re.MULTILINE,
)
IS_KEPT = re.compile(r"_free_instance = self;")
DROP = re.compile(
    r"^ *CPy(?:Tagged)?_X?(?:DECREF|DecRef)(?:_NO_IMM)?\((?P<attribute>[^;]*?->\w+?|\*[^;]*?)(?:\.f\d+)*\);$"
)
LEFT_OVER = re.compile(r"_X?(?:DECREF|DecRef)\w*\((?:[^;\n]*->|\*)[^;\n]*\);")
FORMER = "former"
INCLUDE = re.compile(r"^#include .*\n", re.MULTILINE)
THROWER = "CPy_YieldFromErrorHandle("
THROW = """
/* Hand the exception that is being handled on to what is awaited: 0, it goes on; 1, it is done; 2, it has raised. */
static int multiworld_throw(PyObject *awaited, PyObject **outcome)
{
    PyObject *error = Py_NewRef(CPy_ExcState()->exc_value);
    int ends = PyErr_GivenExceptionMatches(error, PyExc_GeneratorExit);
    PyObject *method = PyObject_GetAttrString(awaited, ends ? "close" : "throw");
    *outcome = NULL;
    if (method == NULL) {
        Py_DECREF(error);
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return 2;
        PyErr_Clear();
        CPy_Reraise();
        return 2;
    }
    PyObject *result = ends ? PyObject_CallNoArgs(method) : PyObject_CallOneArg(method, error);
    Py_DECREF(method);
    Py_DECREF(error);
    if (!ends) {
        *outcome = result != NULL ? result : CPy_FetchStopIterationValue();
        return result != NULL ? 0 : *outcome != NULL ? 1 : 2;
    }
    if (result == NULL)
        return 2;
    Py_DECREF(result);
    CPy_Reraise();
    return 2;
}
"""


class UnknownCodeError(Exception):
    """The code is not what is known of mypyc, so that nobody can say whether it may run in several threads."""


def made_safe(code: str) -> str:
    """Return a file of C that mypyc wrote so that several threads may run it. Raises ``UnknownCodeError``."""
    code, num_kept = DEALLOCATION.subn(_kept_once_empty, code)
    if num_kept != len(IS_KEPT.findall(code)):
        raise UnknownCodeError("objects are kept to be used again in a way that is not known")
    code = "\n".join(_stored_first(code.split("\n")))
    left_over = LEFT_OVER.search(code)
    if left_over is not None:
        raise UnknownCodeError(f"an attribute is let go of in a way that is not known: {left_over[0]}")
    return _thrown_whole(code)


def _kept_once_empty(match: re.Match[str]) -> str:
    """Another one may wait there by then. All is emptied within the trashcan, which bounds how deep that goes."""
    slot, clearing = match["slot"], re.sub(r"^    ", "", match["clearing"], flags=re.MULTILINE)
    return (
        f"{match['begin']}"
        f"{clearing}"
        f"    if ({slot} == NULL) {{\n"
        f"        {slot} = self;\n"
        f"    }} else {{\n"
        f"        Py_TYPE(self)->tp_free((PyObject *)self);\n"
        f"    }}\n"
        f"{match['end']}"
    )


def _stored_first(lines: list[str]) -> list[str]:
    """Have each assignment to an attribute store the new value, and then let the former one go."""
    mended: list[str] = []
    position = 0
    while position < len(lines):
        found = DROP.match(lines[position])
        if found is None:
            mended.append(lines[position])
            position += 1
            continue
        attribute, first = found["attribute"], position
        while (found := DROP.match(lines[position])) is not None and found["attribute"] == attribute:
            position += 1
        drops = lines[first:position]
        if mended and mended[-1].endswith("{") and mended[-1].lstrip().startswith(f"if ({attribute}"):  # it has a value
            position = _expect(lines, position, "}")
            drops = [mended.pop(), *drops, "}"]
        store = lines[position].strip()
        position = _expect(lines, position, f"{attribute} = ")
        mended += [
            "{",
            f"__typeof__({attribute}) {FORMER} = {attribute};",
            store,
            *(line.strip().replace(attribute, FORMER) for line in drops),
            "}",
        ]
    return mended


def _expect(lines: list[str], position: int, start: str) -> int:
    """Return where it goes on after a line that begins so."""
    if not lines[position].lstrip().startswith(start):
        raise UnknownCodeError(f"an attribute is let go of, and then comes: {lines[position].strip()}")
    return position + 1


def _thrown_whole(code: str) -> str:
    """Have a function of ours, behind what the file includes, throw into what is awaited."""
    if THROWER not in code:
        return code
    includes = [match.end() for match in INCLUDE.finditer(code)]
    if not includes:
        raise UnknownCodeError("a file that includes nothing")
    return code[: includes[-1]] + THROW + code[includes[-1] :].replace(THROWER, "multiworld_throw(")
