/* Writes JSON lines from columns whose values are JSON already: what `weave.py` does, many times faster.
 *
 * A column is one text, a JSON array with a value per row; or a list of texts, one per row; or spans of a file, which are read straight
 * into the lines. The lines are written over a bytearray that the caller keeps for the next ones, because fresh memory costs as
 * much as filling it. Everything a column points at is borrowed from the caller's arguments.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define MOST_PIECES 4

typedef struct {
    const char *data;
    Py_ssize_t size;
} Text;

typedef struct {
    Text before;
    const int64_t *begins, *sizes; /* of each row; size 0 where the row has no such piece */
} Piece;

typedef struct {
    Text before, after;
    const char *next, *end; /* the rest of an array */
    PyObject *texts;        /* or a list */
    int file;               /* or pieces of a file */
    Py_ssize_t pieces;
    Piece piece[MOST_PIECES];
} Column;

typedef struct {
    PyObject *array; /* a bytearray, at least as large as what is used of it */
    Py_ssize_t used;
} Lines;

static int make_room(Lines *lines, Py_ssize_t more) {
    Py_ssize_t room = PyByteArray_GET_SIZE(lines->array);
    if (room - lines->used >= more) return 0;
    if (more > PY_SSIZE_T_MAX / 4 || room > PY_SSIZE_T_MAX / 4) {
        PyErr_NoMemory();
        return -1;
    }
    return PyByteArray_Resize(lines->array, 2 * room + more);
}

static char *place(Lines *lines) { return PyByteArray_AS_STRING(lines->array) + lines->used; }

static void add(Lines *lines, Text text) {
    if (!text.size) return;
    memcpy(place(lines), text.data, (size_t)text.size);
    lines->used += text.size;
}

static void add_byte(Lines *lines, char byte) {
    *place(lines) = byte;
    lines->used++;
}

static int has_other_count(void) {
    PyErr_SetString(PyExc_ValueError, "a column has another number of values than there are rows");
    return -1;
}

/* The end of the string that begins at `at`, after its closing quote; `end` when it is not closed. */
static const char *string_end(const char *at, const char *end) {
    for (at++; at < end; at++) {
        if (*at == '\\') {
            at++;
        } else if (*at == '"') {
            return at + 1;
        }
    }
    return end;
}

/* The end of the value that begins at `at`: the comma or bracket that follows it. */
static const char *value_end(const char *at, const char *end) {
    Py_ssize_t depth = 0;
    while (at < end && *at <= '9' && *at > ',') at++; /* most values are numbers */
    while (at < end) {
        char c = *at;
        if (c == '"') {
            at = string_end(at, end);
            continue;
        }
        if (depth == 0 && (c == ',' || c == ']' || c == '}')) return at;
        depth += (c == '[' || c == '{') - (c == ']' || c == '}');
        at++;
    }
    return at;
}

/* The text of a column's next row, of size 0 where there is none. Returns −1 with an exception set. */
static int next_text(Column *column, Py_ssize_t row, Text *text) {
    if (column->texts == NULL) {
        const char *end = value_end(column->next, column->end);
        if (end == column->next || end >= column->end) return has_other_count();
        *text = (Text){column->next, end - column->next};
        column->next = end + 1;
    } else {
        PyObject *one = PyList_GET_ITEM(column->texts, row);
        if (one != Py_None && !PyBytes_Check(one)) {
            PyErr_SetString(PyExc_TypeError, "a value is neither bytes nor None");
            return -1;
        }
        *text = one == Py_None ? (Text){"", 0} : (Text){PyBytes_AS_STRING(one), PyBytes_GET_SIZE(one)};
    }
    if (text->size == 4 && memcmp(text->data, "null", 4) == 0) text->size = 0;
    return 0;
}

static int add_span(Lines *lines, int file, int64_t begin, int64_t size) {
    while (size > 0) {
        ssize_t count = pread(file, place(lines), (size_t)size, (off_t)begin);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) {
            if (count < 0) {
                PyErr_SetFromErrno(PyExc_OSError);
            } else {
                PyErr_SetString(PyExc_EOFError, "the file has become shorter");
            }
            return -1;
        }
        lines->used += count;
        begin += count;
        size -= count;
    }
    return 0;
}

/* Add a row's pieces, each behind its own words. */
static int add_pieces(Lines *lines, const Column *column, Py_ssize_t row, int is_first) {
    Py_ssize_t more = 1 + column->before.size + column->after.size, found = 0;
    for (Py_ssize_t i = 0; i < column->pieces; i++) {
        const Piece *piece = &column->piece[i];
        if (piece->sizes[row] <= 0) continue;
        if (piece->sizes[row] > PY_SSIZE_T_MAX / 16) {
            PyErr_NoMemory();
            return -1;
        }
        found++;
        more += piece->before.size + piece->sizes[row];
    }
    if (!found) return 0;
    if (make_room(lines, more) < 0) return -1;
    if (!is_first) add_byte(lines, ',');
    add(lines, column->before);
    for (Py_ssize_t i = 0; i < column->pieces; i++) {
        const Piece *piece = &column->piece[i];
        if (piece->sizes[row] <= 0) continue;
        add(lines, piece->before);
        if (add_span(lines, column->file, piece->begins[row], piece->sizes[row]) < 0) return -1;
    }
    add(lines, column->after);
    return 1;
}

/* Add a row's value behind its key; 1 when there was one, −1 with an exception set. */
static int add_value(Lines *lines, Column *column, Py_ssize_t row, int is_first) {
    if (column->pieces) return add_pieces(lines, column, row, is_first);
    Text text;
    if (next_text(column, row, &text) < 0) return -1;
    if (text.size == 0) return 0;
    if (make_room(lines, 1 + column->before.size + text.size + column->after.size) < 0) return -1;
    if (!is_first) add_byte(lines, ',');
    add(lines, column->before);
    add(lines, text);
    add(lines, column->after);
    return 1;
}

static int weave_rows(Py_ssize_t rows, Column *columns, Py_ssize_t count, Lines *lines) {
    for (Py_ssize_t row = 0; row < rows; row++) {
        if (make_room(lines, 1) < 0) return -1;
        add_byte(lines, '{');
        int is_first = 1;
        for (Py_ssize_t i = 0; i < count; i++) {
            int added = add_value(lines, &columns[i], row, is_first);
            if (added < 0) return -1;
            if (added) is_first = 0;
        }
        if (make_room(lines, 2) < 0) return -1;
        add(lines, (Text){"}\n", 2});
    }
    for (Py_ssize_t i = 0; i < count && rows > 0; i++)
        if (columns[i].next != columns[i].end) return has_other_count();
    return 0;
}

static int read_numbers(PyObject *given, Py_ssize_t rows, const int64_t **numbers) {
    if (!PyBytes_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "places of pieces are bytes, a 64-bit number per row");
        return -1;
    }
    if (PyBytes_GET_SIZE(given) / (Py_ssize_t)sizeof(int64_t) != rows) return has_other_count();
    *numbers = (const int64_t *)PyBytes_AS_STRING(given);
    return 0;
}

static int read_pieces(PyObject *given, Py_ssize_t rows, Column *column) {
    PyObject *pieces;
    if (!PyArg_ParseTuple(given, "iO!", &column->file, &PyList_Type, &pieces)) return -1;
    column->pieces = PyList_GET_SIZE(pieces);
    if (column->pieces < 1 || column->pieces > MOST_PIECES) {
        PyErr_SetString(PyExc_ValueError, "a value has between one and four pieces");
        return -1;
    }
    for (Py_ssize_t i = 0; i < column->pieces; i++) {
        Piece *piece = &column->piece[i];
        PyObject *begins, *sizes;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(pieces, i), "y#OO", &piece->before.data, &piece->before.size, &begins, &sizes) ||
            read_numbers(begins, rows, &piece->begins) < 0 || read_numbers(sizes, rows, &piece->sizes) < 0)
            return -1;
    }
    return 0;
}

static int read_column(PyObject *given, Py_ssize_t rows, Column *column) {
    PyObject *values;
    if (!PyArg_ParseTuple(given, "y#Oy#", &column->before.data, &column->before.size, &values, &column->after.data,
                          &column->after.size))
        return -1;
    if (PyTuple_Check(values)) return read_pieces(values, rows, column);
    if (PyList_Check(values)) {
        column->texts = values;
        return PyList_GET_SIZE(values) == rows ? 0 : has_other_count();
    }
    if (!PyBytes_Check(values) || PyBytes_GET_SIZE(values) < 2) {
        PyErr_SetString(PyExc_TypeError, "values are a JSON array, a list, or pieces of a file");
        return -1;
    }
    column->next = PyBytes_AS_STRING(values) + 1; /* behind the bracket */
    column->end = PyBytes_AS_STRING(values) + PyBytes_GET_SIZE(values);
    return 0;
}

PyDoc_STRVAR(weave_doc, "weave(rows, columns, into, /)\n--\n\nWrite the rows as JSON lines over a bytearray; how many bytes they take.");

static PyObject *weave(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_ssize_t rows;
    PyObject *given;
    Lines lines = {NULL, 0};
    if (!PyArg_ParseTuple(arguments, "nO!O!", &rows, &PyList_Type, &given, &PyByteArray_Type, &lines.array)) return NULL;
    Py_ssize_t count = PyList_GET_SIZE(given);
    Column *columns = PyMem_Calloc((size_t)(count ? count : 1), sizeof(Column));
    if (columns == NULL) return PyErr_NoMemory();
    int failed = 0;
    for (Py_ssize_t i = 0; i < count && !failed; i++) failed = read_column(PyList_GET_ITEM(given, i), rows, &columns[i]) < 0;
    failed = failed || weave_rows(rows, columns, count, &lines) < 0;
    PyMem_Free(columns);
    return failed ? NULL : PyLong_FromSsize_t(lines.used);
}

static PyMethodDef methods[] = {{"weave", weave, METH_VARARGS, weave_doc}, {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_weave", "JSON lines from columns.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__weave(void) { return PyModule_Create(&definition); }
