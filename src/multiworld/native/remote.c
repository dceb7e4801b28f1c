/* What each operation of remote tensors goes through, without the interpreter: on the master from PyTorch's call to a
 * record in the queue, on the node from the record to the operator's result in the table.
 *
 * remote/tensor/dispatch.py and remote/node/executor.py have the same in Python, and all that is not usual. Each function
 * here gives back to them what it does not know, with nothing done of it.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h> /* of Python 3.10 */
#include <stdint.h>
#include <string.h>

#if PY_BIG_ENDIAN
#error "records are little-endian"
#endif

#define VERSION 2
#define MAX_NUMBERS 256 /* of one call: ids, and as many floats */
#define MAX_ARGUMENTS 32
#define MAX_DEPTH 4 /* of lists in arguments */

typedef enum { FAILED = -1, UNUSUAL = 0, DONE = 1 } outcome;

#define EACH_NAME(USE)                                                                                                 \
    USE(_session)                                                                                                      \
    USE(_spec)                                                                                                         \
    USE(_id)                                                                                                           \
    USE(young)                                                                                                         \
    USE(native)                                                                                                        \
    USE(stream)                                                                                                        \
    USE(streams)                                                                                                       \
    USE(has_streams)                                                                                                   \
    USE(present)                                                                                                       \
    USE(queue)                                                                                                         \
    USE(definitions)                                                                                                   \
    USE(append)                                                                                                        \
    USE(waiting)                                                                                                       \
    USE(is_busy)                                                                                                       \
    USE(queued)                                                                                                        \
    USE(free)                                                                                                          \
    USE(f_lasti)                                                                                                       \
    USE(is_dropping)                                                                                                   \
    USE(sending)

#define DECLARE(name) static PyObject *name_##name;
EACH_NAME(DECLARE)

/* Return whether an attribute is true; -1 and an exception if that cannot be told. */
static int is_true(PyObject *of, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(of, name);
    if (value == NULL)
        return -1;
    int found = PyObject_IsTrue(value);
    Py_DECREF(value);
    return found;
}

/* Replace an object by its attribute. */
static int step_to(PyObject **of, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(*of, name);
    Py_SETREF(*of, value);
    return value == NULL ? -1 : 0;
}

/* ---- the master */

/* What set_up_master gets. */
static PyObject *slow, *plans, *by_value, *make, *forbid_writes, *make_keywords, *label, *dispatch_keys, *tensor_type, *generator_type;
static PyObject *is_users, *look_up, *ids_to_come;
static Py_ssize_t batch_size;
static PyObject *any_float, *of_int, *of_other; /* in a key: 0.5, 1 and 2 */

typedef struct {
    PyTypeObject *remote;
    PyObject *session;
    Py_ssize_t num_ids, num_floats;
    uint64_t ids[MAX_NUMBERS];
    double floats[MAX_NUMBERS];
} operands;

/* Note a remote tensor, and return its part of the key. */
static outcome note_tensor(operands *found, PyObject *tensor, PyObject **part)
{
    PyObject *session = PyObject_GetAttr(tensor, name__session);
    if (session == NULL)
        return FAILED;
    int is_first = found->session == NULL, fits = found->num_ids < MAX_NUMBERS;
    if (is_first)
        found->session = session;
    else
        Py_DECREF(session);
    if (session != found->session || !fits)
        return UNUSUAL; /* of several nodes */
    PyObject *id = PyObject_GetAttr(tensor, name__id);
    if (id == NULL)
        return FAILED;
    found->ids[found->num_ids] = PyLong_AsUnsignedLongLong(id);
    Py_DECREF(id);
    if (found->ids[found->num_ids++] == (uint64_t)-1 && PyErr_Occurred())
        return FAILED;
    *part = PyObject_GetAttr(tensor, name__spec);
    return *part == NULL ? FAILED : DONE;
}

/* Note a value, and return its part of the key: as ``dispatch`` in Python makes it. */
static outcome note(operands *found, PyObject *value, int is_in_list, PyObject **part)
{
    PyTypeObject *kind = Py_TYPE(value);
    if (kind == found->remote)
        return note_tensor(found, value, part);
    if (kind == &PyFloat_Type) {
        if (found->num_floats == MAX_NUMBERS)
            return UNUSUAL;
        found->floats[found->num_floats++] = PyFloat_AS_DOUBLE(value);
        Py_INCREF(any_float);
        *part = any_float;
        return DONE;
    }
    if (PyObject_TypeCheck(value, (PyTypeObject *)tensor_type) || (PyObject *)kind == generator_type)
        return UNUSUAL;
    if (!is_in_list && (kind == &PyList_Type || kind == &PyTuple_Type)) {
        Py_ssize_t size = PySequence_Fast_GET_SIZE(value);
        PyObject *parts = PyTuple_New(size);
        if (parts == NULL)
            return FAILED;
        for (Py_ssize_t i = 0; i < size; i++) {
            PyObject *each = NULL;
            outcome noted = note(found, PySequence_Fast_GET_ITEM(value, i), 1, &each);
            if (noted != DONE) {
                Py_DECREF(parts);
                return noted;
            }
            PyTuple_SET_ITEM(parts, i, each);
        }
        *part = parts;
        return DONE;
    }
    if (kind == &PyLong_Type)
        *part = PyTuple_Pack(2, of_int, value);
    else if (is_in_list || value == Py_None || kind == &PyBool_Type)
        *part = PyTuple_Pack(2, of_other, value);
    else
        Py_INCREF(value), *part = value;
    return *part == NULL ? FAILED : DONE;
}

/* Note all values of a call, and return its key. */
static outcome note_all(operands *found, PyObject *func, PyObject *args, PyObject *kwargs, PyObject **key)
{
    Py_ssize_t num_args = PyTuple_GET_SIZE(args), num_kwargs = kwargs == NULL ? 0 : PyDict_GET_SIZE(kwargs);
    *key = PyTuple_New(1 + num_args + num_kwargs + (num_kwargs > 0));
    PyObject *operator = PyLong_FromVoidPtr(func);
    if (*key == NULL || operator == NULL) {
        Py_XDECREF(operator);
        return FAILED;
    }
    PyTuple_SET_ITEM(*key, 0, operator);
    int matters = PySet_Contains(by_value, operator);
    if (matters != 0)
        return matters < 0 ? FAILED : UNUSUAL;
    Py_ssize_t at = 1;
    for (Py_ssize_t i = 0; i < num_args; i++, at++) {
        PyObject *part = NULL;
        outcome noted = note(found, PyTuple_GET_ITEM(args, i), 0, &part);
        if (noted != DONE)
            return noted;
        PyTuple_SET_ITEM(*key, at, part);
    }
    if (num_kwargs == 0)
        return DONE;
    PyObject *names = PyTuple_New(num_kwargs), *name, *value;
    if (names == NULL)
        return FAILED;
    PyTuple_SET_ITEM(*key, at + num_kwargs, names);
    Py_ssize_t place = 0;
    for (Py_ssize_t i = 0; PyDict_Next(kwargs, &place, &name, &value); i++, at++) {
        Py_INCREF(name);
        PyTuple_SET_ITEM(names, i, name);
        PyObject *part = NULL;
        outcome noted = note(found, value, 0, &part);
        if (noted != DONE)
            return noted;
        PyTuple_SET_ITEM(*key, at, part);
    }
    return DONE;
}

/* Return a plan that is known, and what it sends and returns: a tuple, see ``remote/tensor/plan.py``. Who calls by a plan
 * holds it until the record is queued: with its end the node forgets it. */
static outcome find_plan(PyObject *key, PyObject **plan, PyObject **native)
{
    PyObject *young = PyObject_GetAttr(plans, name_young);
    if (young == NULL)
        return FAILED;
    *plan = PyDict_GetItemWithError(young, key);
    Py_XINCREF(*plan);
    Py_DECREF(young);
    if (*plan == NULL) {
        PyErr_Clear(); /* also of a key that cannot be looked up: Python says so once more */
        return UNUSUAL;
    }
    *native = PyObject_GetAttr(*plan, name_native);
    return *native == NULL ? FAILED : *native == Py_None ? UNUSUAL : DONE;
}

/* Return the innermost place in a program of the user's, as ``origin`` in Python. */
static PyObject *find_origin(void)
{
    PyFrameObject *frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    while (frame != NULL) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        PyObject *number = PyLong_FromVoidPtr(code);
        PyObject *known = number == NULL ? NULL : PyDict_GetItemWithError(is_users, number);
        Py_XDECREF(number);
        if (known != NULL)
            Py_INCREF(known);
        else if (!PyErr_Occurred())
            known = PyObject_CallOneArg(look_up, (PyObject *)code);
        int users = known == NULL ? -1 : PyObject_IsTrue(known);
        Py_XDECREF(known);
        if (users != 0) {
            PyObject *found = NULL;
            if (users > 0) {
                PyObject *instruction = PyObject_GetAttr((PyObject *)frame, name_f_lasti);
                if (instruction != NULL)
                    found = PyTuple_Pack(2, code, instruction);
                Py_XDECREF(instruction);
            }
            Py_DECREF(code);
            Py_DECREF(frame);
            return found;
        }
        Py_DECREF(code);
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    Py_RETURN_NONE;
}

/* Make the wrapper of a new tensor. */
static PyObject *make_tensor(PyTypeObject *remote, PyObject *session, PyObject *id, PyObject *native)
{
    PyObject *given[7] = {(PyObject *)remote, PyTuple_GET_ITEM(native, 2)};
    size_t at = 2;
    if (PyTuple_GET_ITEM(native, 3) != Py_None) { /* else it is contiguous: PyTorch finds the strides */
        given[at++] = PyTuple_GET_ITEM(native, 3);
        given[at++] = PyTuple_GET_ITEM(native, 4);
    }
    given[at] = PyTuple_GET_ITEM(native, 5), given[at + 1] = label, given[at + 2] = dispatch_keys;
    PyObject *tensor = PyObject_Vectorcall(make, given, at, make_keywords);
    PyObject *forbidden = tensor == NULL ? NULL : PyObject_CallOneArg(forbid_writes, tensor);
    if (forbidden == NULL) {
        Py_XDECREF(tensor);
        return NULL;
    }
    Py_DECREF(forbidden);
    if (PyObject_SetAttr(tensor, name__session, session) < 0 || PyObject_SetAttr(tensor, name__id, id) < 0 ||
        PyObject_SetAttr(tensor, name__spec, PyTuple_GET_ITEM(native, 6)) < 0) {
        Py_DECREF(tensor);
        return NULL;
    }
    return tensor;
}

static PyObject *make_record(PyObject *number, PyObject *new_id, const operands *found)
{
    size_t of_new = new_id != NULL ? 8 : 0;
    size_t of_ids = 8 * (size_t)found->num_ids, of_floats = 8 * (size_t)found->num_floats;
    uint32_t plan = (uint32_t)PyLong_AsUnsignedLong(number);
    uint64_t id = new_id != NULL ? PyLong_AsUnsignedLongLong(new_id) : 0;
    if (PyErr_Occurred())
        return NULL;
    PyObject *record = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(4 + of_new + of_ids + of_floats));
    if (record == NULL)
        return NULL;
    char *at = PyBytes_AS_STRING(record);
    memcpy(at, &plan, 4), at += 4;
    memcpy(at, &id, of_new), at += of_new;
    memcpy(at, found->ids, of_ids), at += of_ids;
    memcpy(at, found->floats, of_floats);
    return record;
}

/* Append a record to the queue of a stream. Takes over the reference to the record. */
static int queue_record(PyObject *stream, PyObject *queue, PyObject *record, PyObject *operation)
{
    PyObject *origin = record == NULL ? NULL : find_origin();
    PyObject *command = origin == NULL ? NULL : PyTuple_Pack(3, record, operation, origin);
    Py_XDECREF(origin);
    Py_XDECREF(record);
    PyObject *append = command == NULL ? NULL : PyObject_GetAttr(queue, name_append);
    PyObject *appended = append == NULL ? NULL : PyObject_CallOneArg(append, command);
    Py_XDECREF(append);
    Py_XDECREF(command);
    if (appended == NULL)
        return -1;
    Py_DECREF(appended);
    int is_busy = is_true(stream, name_is_busy);
    if (is_busy < 0)
        return -1;
    if (is_busy) {
        PyObject *waiting = PyObject_GetAttr(queue, name_waiting);
        if (waiting == NULL)
            return -1;
        Py_ssize_t size = PyObject_Size(waiting);
        Py_DECREF(waiting);
        if (size < batch_size)
            return size < 0 ? -1 : 0;
    }
    PyObject *queued = PyObject_CallMethodNoArgs(stream, name_queued);
    Py_XDECREF(queued);
    return queued == NULL ? -1 : 0;
}

/* Queue a call by its plan, and return what it returns. */
static outcome run_plan(PyObject *native, const operands *found, PyObject *args, PyObject **result)
{
    PyObject *number = PyTuple_GET_ITEM(native, 0), *operation = PyTuple_GET_ITEM(native, 1);
    PyObject *session = found->session, *stream = session, *queue = NULL;
    outcome done = FAILED;
    int has_streams = is_true(session, name_has_streams);
    if (has_streams < 0)
        return FAILED;
    Py_INCREF(stream);
    if (has_streams ? step_to(&stream, name_streams) < 0 || step_to(&stream, name_present) < 0
                    : step_to(&stream, name_stream) < 0)
        goto end;
    PyObject *definitions = PyObject_GetAttr(stream, name_definitions);
    if (definitions == NULL)
        goto end;
    int is_defined = PySequence_Contains(definitions, number);
    Py_DECREF(definitions);
    if (is_defined <= 0) {
        done = is_defined < 0 ? FAILED : UNUSUAL;
        goto end;
    }
    queue = PyObject_GetAttr(stream, name_queue);
    if (queue == NULL)
        goto end;
    if (PyTuple_GET_SIZE(native) == 3) { /* no new tensor: the number of the argument that it returns, or None */
        PyObject *argument = PyTuple_GET_ITEM(native, 2);
        PyObject *returned = argument == Py_None ? Py_None : PyTuple_GetItem(args, PyLong_AsSsize_t(argument));
        if (returned == NULL || queue_record(stream, queue, make_record(number, NULL, found), operation) < 0)
            goto end;
        Py_INCREF(returned);
        *result = returned;
        done = DONE;
        goto end;
    }
    PyObject *id = Py_TYPE(ids_to_come)->tp_iternext(ids_to_come);
    if (id == NULL)
        goto end;
    PyObject *tensor = make_tensor(found->remote, session, id, native);
    if (tensor != NULL && queue_record(stream, queue, make_record(number, id, found), operation) < 0)
        Py_CLEAR(tensor);
    Py_DECREF(id);
    *result = tensor;
    done = tensor == NULL ? FAILED : DONE;
end:
    Py_XDECREF(queue);
    Py_XDECREF(stream);
    return done;
}

/* dispatch(cls, func, types, args, kwargs): called by PyTorch, as the one in Python is. */
static PyObject *dispatch(PyObject *self, PyObject *const *given, Py_ssize_t num_given)
{
    (void)self;
    PyObject *kwargs = num_given > 4 && given[4] != Py_None ? given[4] : NULL;
    if (slow == NULL || num_given < 4 || num_given > 5 || !PyType_Check(given[0]) || !PyTuple_CheckExact(given[3]) ||
        (kwargs != NULL && !PyDict_CheckExact(kwargs))) {
        if (slow == NULL)
            return PyErr_Format(PyExc_RuntimeError, "set_up_master was not called");
        return PyObject_Vectorcall(slow, given, num_given, NULL);
    }
    operands found;
    found.remote = (PyTypeObject *)given[0];
    found.session = NULL;
    found.num_ids = found.num_floats = 0;
    PyObject *key = NULL, *plan = NULL, *native = NULL, *result = NULL;
    outcome done = note_all(&found, given[1], given[3], kwargs, &key);
    if (done == DONE)
        done = found.session == NULL ? UNUSUAL : find_plan(key, &plan, &native);
    if (done == DONE)
        done = run_plan(native, &found, given[3], &result);
    Py_XDECREF(key);
    Py_XDECREF(native);
    Py_XDECREF(plan);
    Py_XDECREF(found.session);
    return done == UNUSUAL ? PyObject_Vectorcall(slow, given, num_given, NULL) : result;
}

/* Called as a tensor goes: give up its id. One that was never given an id has none. */
static PyObject *give_up(PyObject *self, PyObject *tensor)
{
    (void)self;
    PyObject *session = PyObject_GetAttr(tensor, name__session);
    PyObject *id = session == NULL ? NULL : PyObject_GetAttr(tensor, name__id);
    PyObject *freed = id == NULL ? NULL : PyObject_CallMethodOneArg(session, name_free, id);
    Py_XDECREF(session);
    Py_XDECREF(id);
    if (freed == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return NULL;
        PyErr_Clear();
    }
    Py_XDECREF(freed);
    Py_RETURN_NONE;
}

static PyObject *set_up_master(PyObject *self, PyObject *args, PyObject *given)
{
    (void)self;
    static char *names[] = {"slow",          "plans",       "by_value",       "make",     "forbid_writes", "label",
                            "dispatch_keys", "tensor_type", "generator_type", "is_users", "look_up",       "ids_to_come",
                            "batch_size",    NULL};
    enum { NUM_PLACES = 12 };
    PyObject **places[NUM_PLACES] = {&slow,          &plans,       &by_value,       &make,     &forbid_writes, &label,
                                     &dispatch_keys, &tensor_type, &generator_type, &is_users, &look_up,       &ids_to_come};
    PyObject *found[NUM_PLACES];
    if (!PyArg_ParseTupleAndKeywords(args, given, "$OOO!OOOOO!OO!OOn", names, &found[0], &found[1], &PySet_Type,
                                     &found[2], &found[3], &found[4], &found[5], &found[6], &PyType_Type, &found[7],
                                     &found[8], &PyDict_Type, &found[9], &found[10], &found[11], &batch_size))
        return NULL;
    if (!PyIter_Check(found[11]))
        return PyErr_Format(PyExc_TypeError, "ids_to_come is no iterator");
    for (int i = 0; i < NUM_PLACES; i++) {
        Py_INCREF(found[i]);
        Py_XSETREF(*places[i], found[i]);
    }
    Py_RETURN_NONE;
}

/* ---- the node */

static PyObject *tensor_slot, *float_slot; /* what set_up_node gets */

typedef struct {
    const char *numbers; /* of one record, behind that of its plan */
    Py_ssize_t next_tensor, next_float;
    PyObject *tensors[MAX_NUMBERS]; /* borrowed from the table, then owned */
} arguments;

/* Return an argument: a tensor or a float of the record, a list of such, or what stands in the plan. */
static PyObject *build(arguments *from, PyObject *item, int depth)
{
    if (item == tensor_slot) {
        PyObject *tensor = from->tensors[from->next_tensor++];
        Py_INCREF(tensor);
        return tensor;
    }
    if (item == float_slot) {
        double value;
        memcpy(&value, from->numbers + 8 * from->next_float++, 8);
        return PyFloat_FromDouble(value);
    }
    if (!PyList_CheckExact(item)) {
        Py_INCREF(item);
        return item;
    }
    if (depth == MAX_DEPTH)
        return PyErr_Format(PyExc_ValueError, "lists in arguments are more than %d deep", MAX_DEPTH);
    Py_ssize_t size = PyList_GET_SIZE(item);
    PyObject *list = PyList_New(size);
    for (Py_ssize_t i = 0; list != NULL && i < size; i++) {
        PyObject *each = build(from, PyList_GET_ITEM(item, i), depth + 1);
        if (each == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, each);
    }
    return list;
}

/* Call the operator. */
static PyObject *call(arguments *from, PyObject *function, PyObject *items, PyObject *keywords)
{
    PyObject *stack[MAX_ARGUMENTS], *returned = NULL;
    Py_ssize_t size = PyTuple_GET_SIZE(items), built = 0;
    Py_ssize_t num_keywords = keywords == Py_None ? 0 : PyTuple_GET_SIZE(keywords);
    if (size > MAX_ARGUMENTS)
        return PyErr_Format(PyExc_ValueError, "more than %d arguments", MAX_ARGUMENTS);
    for (; built < size; built++)
        if ((stack[built] = build(from, PyTuple_GET_ITEM(items, built), 0)) == NULL)
            break;
    if (built == size)
        returned = PyObject_Vectorcall(function, stack, (size_t)(size - num_keywords), num_keywords ? keywords : NULL);
    while (built > 0)
        Py_DECREF(stack[--built]);
    return returned;
}

static int keep_one(PyObject *table, const char *id, PyObject *tensor)
{
    uint64_t number;
    memcpy(&number, id, 8);
    PyObject *key = PyLong_FromUnsignedLongLong(number);
    int kept = key == NULL ? -1 : PyDict_SetItem(table, key, tensor);
    Py_XDECREF(key);
    return kept;
}

/* Keep what the operator returned under the ids of a record. ``kept``: which of it get one; None: it is one tensor. */
static int keep(PyObject *table, const char *ids, PyObject *kept, PyObject *returned)
{
    if (kept == Py_None)
        return keep_one(table, ids, returned);
    Py_ssize_t size = PyTuple_GET_SIZE(kept);
    if (size == 0)
        return 0;
    if (!(PyTuple_Check(returned) || PyList_Check(returned)) || PySequence_Fast_GET_SIZE(returned) != size) {
        PyErr_Format(PyExc_RuntimeError, "it returned other tensors than before: %R", returned);
        return -1;
    }
    for (Py_ssize_t i = 0; i < size; i++) {
        if (PyTuple_GET_ITEM(kept, i) != Py_True)
            continue;
        if (keep_one(table, ids, PySequence_Fast_GET_ITEM(returned, i)) < 0)
            return -1;
        ids += 8;
    }
    return 0;
}

/* Take the tensors of a record from the table; UNUSUAL if one is none, or is not there. */
static outcome take(PyObject *table, const char *ids, Py_ssize_t count, PyObject **tensors)
{
    Py_ssize_t taken = 0;
    for (; taken < count; taken++) {
        uint64_t number;
        memcpy(&number, ids + 8 * taken, 8);
        PyObject *key = PyLong_FromUnsignedLongLong(number);
        PyObject *entry = key == NULL ? NULL : PyDict_GetItemWithError(table, key);
        Py_XDECREF(key);
        if (entry == NULL || !PyObject_TypeCheck(entry, (PyTypeObject *)tensor_type))
            break;
        Py_INCREF(entry);
        tensors[taken] = entry;
    }
    if (taken == count)
        return DONE;
    while (taken > 0)
        Py_DECREF(tensors[--taken]);
    return PyErr_Occurred() ? FAILED : UNUSUAL;
}

/* Execute the record at ``at``, and go behind it. FAILED: the operator raised, and ``at`` is where its record begins. */
static outcome execute_one(const char *batch, Py_ssize_t end, Py_ssize_t *at, PyObject *known, PyObject *table,
                           PyObject *shared)
{
    uint32_t number;
    if (end - *at < 4)
        return UNUSUAL;
    memcpy(&number, batch + *at, 4);
    PyObject *key = PyLong_FromUnsignedLong(number);
    PyObject *plan = key == NULL ? NULL : PyDict_GetItemWithError(known, key);
    Py_XDECREF(key);
    if (plan == NULL)
        return PyErr_Occurred() ? FAILED : UNUSUAL;
    PyObject *native = PyObject_GetAttr(plan, name_native);
    if (native == NULL)
        return FAILED;
    outcome done = UNUSUAL;
    arguments from;
    if (native == Py_None)
        goto end;
    /* function, items, keywords, kept, numbers of new tensors, tensors and floats, whether it writes */
    Py_ssize_t num_new = PyLong_AsSsize_t(PyTuple_GET_ITEM(native, 4));
    Py_ssize_t num_tensors = PyLong_AsSsize_t(PyTuple_GET_ITEM(native, 5));
    Py_ssize_t num_floats = PyLong_AsSsize_t(PyTuple_GET_ITEM(native, 6));
    Py_ssize_t size = 4 + 8 * (num_new + num_tensors + num_floats);
    if (end - *at < size || num_tensors > MAX_NUMBERS)
        goto end;
    if (PyTuple_GET_ITEM(native, 7) == Py_True) {
        int sending = is_true(shared, name_sending);
        if (sending != 0) {
            done = sending < 0 ? FAILED : UNUSUAL;
            goto end;
        }
    }
    const char *ids = batch + *at + 4;
    done = take(table, ids + 8 * num_new, num_tensors, from.tensors);
    if (done != DONE)
        goto end;
    from.numbers = ids + 8 * (num_new + num_tensors);
    from.next_tensor = from.next_float = 0;
    PyObject *returned =
        call(&from, PyTuple_GET_ITEM(native, 0), PyTuple_GET_ITEM(native, 1), PyTuple_GET_ITEM(native, 2));
    while (num_tensors > 0)
        Py_DECREF(from.tensors[--num_tensors]);
    if (returned == NULL || keep(table, ids, PyTuple_GET_ITEM(native, 3), returned) < 0)
        done = FAILED;
    else
        *at += size;
    Py_XDECREF(returned);
end:
    Py_DECREF(native);
    return done;
}

/* Take the exception that is set, as an object; NULL if it is to be raised here. */
static PyObject *take_error(void)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return NULL;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL)
        PyException_SetTraceback(value, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
}

/* execute(batch, at, plans, table, shared, awaited): execute records up to the first one that is not usual.
 *
 * Return where that begins, how many were executed, and what its operator raised, or None if it did not begin.
 */
static PyObject *execute(PyObject *self, PyObject *const *given, Py_ssize_t num_given)
{
    (void)self;
    if (tensor_slot == NULL || num_given != 6 || !PyDict_Check(given[2]) || !PyDict_Check(given[3]))
        return PyErr_Format(PyExc_TypeError, "execute(batch, at, plans, table, shared, awaited), behind set_up_node");
    Py_buffer batch;
    Py_ssize_t at = PyLong_AsSsize_t(given[1]), count = 0;
    if ((at == -1 && PyErr_Occurred()) || PyObject_GetBuffer(given[0], &batch, PyBUF_SIMPLE) < 0)
        return NULL;
    outcome done = at < 0 ? UNUSUAL : DONE;
    while (done == DONE && at < batch.len) {
        int dropping = is_true(given[4], name_is_dropping);
        int awaited = dropping != 0 ? 0 : PyObject_IsTrue(given[5]);
        if (dropping < 0 || awaited < 0) {
            PyBuffer_Release(&batch);
            return NULL;
        }
        if (dropping || awaited)
            break;
        done = execute_one(batch.buf, batch.len, &at, given[2], given[3], given[4]);
        count += done == DONE;
    }
    PyBuffer_Release(&batch);
    if (done != FAILED)
        return Py_BuildValue("nnO", at, count, Py_None);
    PyObject *error = take_error();
    return error == NULL ? NULL : Py_BuildValue("nnN", at, count, error);
}

static PyObject *set_up_node(PyObject *self, PyObject *args, PyObject *given)
{
    (void)self;
    static char *names[] = {"tensor_type", "tensor_slot", "float_slot", NULL};
    PyObject *type, *of_tensors, *of_floats;
    if (!PyArg_ParseTupleAndKeywords(args, given, "$O!OO", names, &PyType_Type, &type, &of_tensors, &of_floats))
        return NULL;
    Py_INCREF(type), Py_INCREF(of_tensors), Py_INCREF(of_floats);
    Py_XSETREF(tensor_type, type);
    Py_XSETREF(tensor_slot, of_tensors);
    Py_XSETREF(float_slot, of_floats);
    Py_RETURN_NONE;
}

/* ---- the module */

static PyMethodDef giving_up = {"give_up", give_up, METH_O, NULL};
static PyMethodDef functions[] = {
    {"dispatch", (PyCFunction)(void (*)(void))dispatch, METH_FASTCALL, NULL},
    {"set_up_master", (PyCFunction)(void (*)(void))set_up_master, METH_VARARGS | METH_KEYWORDS, NULL},
    {"execute", (PyCFunction)(void (*)(void))execute, METH_FASTCALL, NULL},
    {"set_up_node", (PyCFunction)(void (*)(void))set_up_node, METH_VARARGS | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "multiworld.native.remote", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_remote(void)
{
#define INTERN(name)                                                                                                   \
    if ((name_##name = PyUnicode_InternFromString(#name)) == NULL)                                                     \
        return NULL;
    EACH_NAME(INTERN)
    any_float = PyFloat_FromDouble(0.5);
    of_int = PyLong_FromLong(1);
    of_other = PyLong_FromLong(2);
    make_keywords = Py_BuildValue("(sss)", "dtype", "device", "_extra_dispatch_keys");
    PyObject *module = PyModule_Create(&definition);
    PyObject *function = PyCFunction_New(&giving_up, NULL);
    PyObject *method = function == NULL ? NULL : PyInstanceMethod_New(function); /* bound to a tensor, as one in Python */
    Py_XDECREF(function);
    if (any_float == NULL || of_int == NULL || of_other == NULL || make_keywords == NULL || module == NULL ||
        method == NULL || PyModule_AddIntConstant(module, "VERSION", VERSION) < 0 ||
        PyModule_AddObject(module, "give_up", method) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
