"""C that mypyc writes is mended for several threads; what is not known of it is refused."""

from __future__ import annotations

import pytest

from multiworld.native.generated import UnknownCodeError, made_safe

KEPT = """\
    PyObject_GC_UnTrack(self);
    if (m___env_free_instance == NULL) {
        m___env_free_instance = self;
        Py_CLEAR(self->_start);
        if (CPyTagged_CheckLong(self->_count)) {
            CPyTagged __tmp = self->_count;
            self->_count = CPY_INT_TAG;
            Py_XDECREF(CPyTagged_LongAsObject(__tmp));
        } else {
            self->_count = CPY_INT_TAG;
        }
        return;
    }
    CPy_TRASHCAN_BEGIN(self, m___env_dealloc)
    CPyDef_m___env_clear((PyObject *)self);
    Py_TYPE(self)->tp_free((PyObject *)self);
    CPy_TRASHCAN_END(self)
    done: ;
"""
BARE = """\
    cpy_r_r1 = PyList_New(0);
    CPy_DECREF(((m___InboxObject *)cpy_r_self)->__parted);
    ((m___InboxObject *)cpy_r_self)->__parted = cpy_r_r1;
    return 1;
"""
GUARDED = """\
    if (self->_buffer != NULL) {
        CPy_DECREF(self->_buffer);
    }
    self->_buffer = tmp;
"""
TUPLE = """\
    if (self->_pair.f0 != NULL) {
        CPy_DECREF(self->_pair.f0);
        CPy_DECREF(self->_pair.f1);
    }
    self->_pair = tmp;
"""
AWAITING = """\
#include "__native_m.h"
#include "__native_internal_m.h"

    cpy_r_r5 = CPy_YieldFromErrorHandle(cpy_r_r2, cpy_r_r6);
"""
NATIVE = """\
        CPy_DECREF_NO_IMM(((m___FrameObject *)cpy_r_self)->__segments);
        ((m___FrameObject *)cpy_r_self)->__segments = cpy_r_r7;
"""
TRAIT = """\
    __tmp1 = CPy_FindAttrOffset(CPyType_m___Shape, ((m___ShapeObject *)cpy_r_self)->vtable, 1);
    if (*(PyObject * *)((char *)cpy_r_self + __tmp1) != NULL) {
        CPy_DECREF(*(PyObject * *)((char *)cpy_r_self + __tmp1));
    }
    *(PyObject * *)((char *)cpy_r_self + __tmp1) = cpy_r_r2;
"""
BRANCH = """\
    if (cpy_r_r2) {
        CPyTagged_DECREF(((m___InboxObject *)cpy_r_self)->__seq);
        ((m___InboxObject *)cpy_r_self)->__seq = 0;
    }
"""


def steps(code: str) -> list[str]:
    return [line.strip() for line in made_safe(code).splitlines()]


def test_what_waits_to_be_used_again_is_empty() -> None:
    lines = steps(KEPT)
    waits = lines.index("m___env_free_instance = self;")
    assert lines.index("Py_CLEAR(self->_start);") < lines.index("self->_count = CPY_INT_TAG;") < waits
    assert lines.count("m___env_free_instance = self;") == 1
    # Another one may wait there since, which must not be lost: then this one goes.
    assert lines[waits - 1] == "if (m___env_free_instance == NULL) {"
    assert lines[waits + 1 : waits + 3] == ["} else {", "Py_TYPE(self)->tp_free((PyObject *)self);"]
    assert made_safe(KEPT).count("{") == made_safe(KEPT).count("}")


def test_what_is_emptied_is_so_within_the_trashcan() -> None:
    """A long chain of closures, each of which holds the next, would take as many frames of C."""
    lines = steps(KEPT)
    inside = range(lines.index("CPy_TRASHCAN_BEGIN(self, m___env_dealloc)"), lines.index("CPy_TRASHCAN_END(self)"))
    emptied = [number for number, line in enumerate(lines) if "CLEAR" in line or "DECREF" in line]
    assert emptied
    assert all(number in inside for number in emptied)
    assert "return;" not in lines


@pytest.mark.parametrize(
    ("code", "attribute"),
    [
        (BARE, "((m___InboxObject *)cpy_r_self)->__parted"),
        (GUARDED, "self->_buffer"),
        (TUPLE, "self->_pair"),
        (BRANCH, "((m___InboxObject *)cpy_r_self)->__seq"),
        (NATIVE, "((m___FrameObject *)cpy_r_self)->__segments"),
        (TRAIT, "*(PyObject * *)((char *)cpy_r_self + __tmp1)"),
    ],
)
def test_a_new_value_is_in_place_before_the_former_one_ends(code: str, attribute: str) -> None:
    lines = steps(code)
    kept = lines.index(f"__typeof__({attribute}) former = {attribute};")
    stored = next(number for number, line in enumerate(lines) if line.startswith(f"{attribute} = "))
    ended = [number for number, line in enumerate(lines) if "DECREF" in line and "(former" in line]
    assert kept < stored < min(ended)
    assert len(ended) == code.count("DECREF")
    assert not any("DECREF" in line and attribute in line for line in lines)
    mended = made_safe(code)
    assert mended.count("{") == mended.count("}")


def test_what_has_a_guard_keeps_it() -> None:
    lines = steps(GUARDED)
    assert lines[lines.index("CPy_DECREF(former);") - 1] == "if (former != NULL) {"


def test_other_code_stays_as_it_is() -> None:
    code = "    cpy_r_r0 = self->_x;\n    CPy_INCREF(cpy_r_r0);\n    CPy_DECREF(cpy_r_r1);\n    Py_CLEAR(self->_x);\n"
    assert made_safe(code) == code


def test_what_is_awaited_gets_an_exception_from_a_function_of_ours() -> None:
    lines = steps(AWAITING)
    assert [line for line in lines if line.startswith("#include")] == lines[:2]
    assert "static int multiworld_throw(PyObject *awaited, PyObject **outcome)" in lines
    assert lines[-1] == "cpy_r_r5 = multiworld_throw(cpy_r_r2, cpy_r_r6);"
    assert "CPy_YieldFromErrorHandle" not in made_safe(AWAITING)


@pytest.mark.parametrize(
    "code",
    [
        AWAITING.replace("#include", "//"),
        KEPT.replace("        return;\n", "        goto done;\n"),
        KEPT.replace("== NULL) {\n        m___env", "== NULL) {\n        count++;\n        m___env"),
        KEPT.replace("    CPy_TRASHCAN_END(self)\n", ""),
        BARE.replace("CPy_DECREF(", "CPy_DECREF_LATER("),
        BARE.replace("    ((m___InboxObject *)cpy_r_self)->__parted = cpy_r_r1;\n", ""),
        GUARDED.replace("    }\n", "        count++;\n    }\n"),
    ],
)
def test_what_is_not_known_is_refused(code: str) -> None:
    with pytest.raises(UnknownCodeError):
        made_safe(code)
