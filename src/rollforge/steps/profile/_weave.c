/* Writes JSON lines from columns whose values are numbers, or JSON already: what `weave.py` does, many times faster.
 *
 * A column is an array of numbers; or one text, a JSON array with a value per row; or a list of texts, one per row; or spans of a
 * file, which are read straight into the lines. The lines are written over a bytearray that the caller keeps for the next ones,
 * because fresh memory costs as much as filling it. Everything a column points at is borrowed from the caller's arguments.
 *
 * Lines are written without the interpreter's lock, so that several threads may, each into a bytearray of its own.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "_number.h"

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
    Py_buffer numbers;      /* doubles, or whole numbers; without an object when the column is one of those below */
    int is_whole;           /* which of the two */
    const char *next, *end; /* the rest of an array */
    Text *texts;            /* or one per row */
    int file;               /* or pieces of a file */
    Py_ssize_t pieces;
    Piece piece[MOST_PIECES];
} Column;

typedef enum { FINE, OTHER_COUNT, NO_MEMORY, SHORTER, SYSTEM } Outcome;

typedef struct {
    PyObject *array; /* a bytearray, at least as large as what is used of it */
    Py_ssize_t used;
    PyThreadState *away; /* who goes on when the interpreter is needed after all */
    Outcome outcome;     /* of everything added so far */
    int error;           /* the system's, for that outcome */
    double number;       /* the last one spelled, and where: most statistics of a single value are that value */
    Py_ssize_t spelled, spelled_size;
} Lines;

static int fail(Lines *lines, Outcome outcome) {
    lines->outcome = outcome;
    return -1;
}

static int make_room(Lines *lines, Py_ssize_t more) {
    Py_ssize_t room = PyByteArray_GET_SIZE(lines->array);
    if (room - lines->used >= more) return 0;
    if (more > PY_SSIZE_T_MAX / 4 || room > PY_SSIZE_T_MAX / 4) return fail(lines, NO_MEMORY);
    PyEval_RestoreThread(lines->away);
    int failed = PyByteArray_Resize(lines->array, 2 * room + more) < 0;
    if (failed) PyErr_Clear();
    lines->away = PyEval_SaveThread();
    return failed ? fail(lines, NO_MEMORY) : 0;
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

/* The text of a column's next row, of size 0 where there is none. */
static int next_text(Lines *lines, Column *column, Py_ssize_t row, Text *text) {
    if (column->texts != NULL) {
        *text = column->texts[row];
    } else {
        const char *end = value_end(column->next, column->end);
        if (end == column->next || end >= column->end) return fail(lines, OTHER_COUNT);
        *text = (Text){column->next, end - column->next};
        column->next = end + 1;
    }
    if (text->size == 4 && memcmp(text->data, "null", 4) == 0) text->size = 0;
    return 0;
}

static int add_span(Lines *lines, int file, int64_t begin, int64_t size) {
    while (size > 0) {
        ssize_t count = pread(file, place(lines), (size_t)size, (off_t)begin);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) lines->error = errno;
        if (count <= 0) return fail(lines, count < 0 ? SYSTEM : SHORTER);
        lines->used += count;
        begin += count;
        size -= count;
    }
    return 0;
}

/* Add a row's pieces, each behind its own words. */
static int add_pieces(Lines *lines, const Column *column, Py_ssize_t row) {
    Py_ssize_t more = column->before.size + column->after.size + 1, found = 0;
    for (Py_ssize_t i = 0; i < column->pieces; i++) {
        const Piece *piece = &column->piece[i];
        if (piece->sizes[row] <= 0) continue;
        if (piece->sizes[row] > PY_SSIZE_T_MAX / 16) return fail(lines, NO_MEMORY);
        found++;
        more += piece->before.size + piece->sizes[row];
    }
    if (!found) return 0;
    if (make_room(lines, more) < 0) return -1;
    add(lines, column->before);
    for (Py_ssize_t i = 0; i < column->pieces; i++) {
        const Piece *piece = &column->piece[i];
        if (piece->sizes[row] <= 0) continue;
        add(lines, piece->before);
        if (add_span(lines, column->file, piece->begins[row], piece->sizes[row]) < 0) return -1;
    }
    add(lines, column->after);
    add_byte(lines, ',');
    return 0;
}

static int add_whole_number(Lines *lines, const Column *column, Py_ssize_t row) {
    int64_t number = ((const int64_t *)column->numbers.buf)[row];
    if (number == INT64_MIN) return 0;
    if (make_room(lines, column->before.size + ROOM + column->after.size + 1) < 0) return -1;
    add(lines, column->before);
    lines->used += spell_whole(place(lines), number);
    add(lines, column->after);
    add_byte(lines, ',');
    return 0;
}

static int add_number(Lines *lines, const Column *column, Py_ssize_t row) {
    double number = ((const double *)column->numbers.buf)[row];
    if (!isfinite(number)) return 0;
    if (make_room(lines, column->before.size + ROOM + column->after.size + 1) < 0) return -1;
    add(lines, column->before);
    if (memcmp(&number, &lines->number, sizeof number) == 0) { /* bit by bit: 0 and −0 are spelled differently */
        char spelled[MOST_NUMBER];
        memcpy(spelled, PyByteArray_AS_STRING(lines->array) + lines->spelled, MOST_NUMBER);
        memcpy(place(lines), spelled, MOST_NUMBER);
    } else {
        lines->number = number;
        lines->spelled_size = spell_double(place(lines), number);
    }
    lines->spelled = lines->used;
    lines->used += lines->spelled_size;
    add(lines, column->after);
    add_byte(lines, ',');
    return 0;
}

static int add_text(Lines *lines, Column *column, Py_ssize_t row) {
    Text text;
    if (next_text(lines, column, row, &text) < 0) return -1;
    if (text.size == 0) return 0;
    if (make_room(lines, column->before.size + text.size + column->after.size + 1) < 0) return -1;
    add(lines, column->before);
    add(lines, text);
    add(lines, column->after);
    add_byte(lines, ',');
    return 0;
}

/* Add a row's value behind its key and before a comma, if it has one. */
static int add_value(Lines *lines, Column *column, Py_ssize_t row) {
    if (column->pieces) return add_pieces(lines, column, row);
    if (column->numbers.obj == NULL) return add_text(lines, column, row);
    return column->is_whole ? add_whole_number(lines, column, row) : add_number(lines, column, row);
}

static int weave_rows(Py_ssize_t rows, Column *columns, Py_ssize_t count, Lines *lines) {
    for (Py_ssize_t row = 0; row < rows; row++) {
        if (make_room(lines, 1) < 0) return -1;
        add_byte(lines, '{');
        Py_ssize_t start = lines->used;
        for (Py_ssize_t i = 0; i < count; i++)
            if (add_value(lines, &columns[i], row) < 0) return -1;
        if (lines->used > start) lines->used--; /* the last comma */
        if (make_room(lines, 2) < 0) return -1;
        add(lines, (Text){"}\n", 2});
    }
    for (Py_ssize_t i = 0; i < count && rows > 0; i++)
        if (columns[i].next != columns[i].end) return fail(lines, OTHER_COUNT);
    return 0;
}

/* What stands in the arguments; each returns −1 with an exception set */

static int has_other_count(void) {
    PyErr_SetString(PyExc_ValueError, "a column has another number of values than there are rows");
    return -1;
}

static int read_places(PyObject *given, Py_ssize_t rows, const int64_t **numbers) {
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
            read_places(begins, rows, &piece->begins) < 0 || read_places(sizes, rows, &piece->sizes) < 0)
            return -1;
    }
    return 0;
}

static int read_texts(PyObject *given, Py_ssize_t rows, Column *column) {
    if (PyList_GET_SIZE(given) != rows) return has_other_count();
    column->texts = PyMem_New(Text, rows ? rows : 1);
    if (column->texts == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t row = 0; row < rows; row++) {
        PyObject *one = PyList_GET_ITEM(given, row);
        if (one != Py_None && !PyBytes_Check(one)) {
            PyErr_SetString(PyExc_TypeError, "a value is neither bytes nor None");
            return -1;
        }
        column->texts[row] = one == Py_None ? (Text){"", 0} : (Text){PyBytes_AS_STRING(one), PyBytes_GET_SIZE(one)};
    }
    return 0;
}

static int read_numbers(PyObject *given, Py_ssize_t rows, Column *column) {
    Py_buffer *numbers = &column->numbers;
    if (PyObject_GetBuffer(given, numbers, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) < 0) return -1;
    const char *kind = numbers->format ? numbers->format : "B";
    column->is_whole = strcmp(kind, "l") == 0 || strcmp(kind, "q") == 0;
    if (numbers->ndim != 1 || numbers->itemsize != 8 || !(column->is_whole || strcmp(kind, "d") == 0)) {
        PyErr_SetString(PyExc_TypeError, "an array holds doubles or 64-bit numbers");
        return -1;
    }
    return numbers->shape[0] == rows ? 0 : has_other_count();
}

static int read_column(PyObject *given, Py_ssize_t rows, Column *column) {
    PyObject *values;
    if (!PyArg_ParseTuple(given, "y#Oy#", &column->before.data, &column->before.size, &values, &column->after.data,
                          &column->after.size))
        return -1;
    if (PyTuple_Check(values)) return read_pieces(values, rows, column);
    if (PyList_Check(values)) return read_texts(values, rows, column);
    if (!PyBytes_Check(values)) return read_numbers(values, rows, column);
    if (PyBytes_GET_SIZE(values) < 2) {
        PyErr_SetString(PyExc_TypeError, "values are a JSON array, a list, an array of numbers, or pieces of a file");
        return -1;
    }
    column->next = PyBytes_AS_STRING(values) + 1; /* behind the bracket */
    column->end = PyBytes_AS_STRING(values) + PyBytes_GET_SIZE(values);
    return 0;
}

static void raise_outcome(const Lines *lines) {
    switch (lines->outcome) {
    case FINE:
        break;
    case OTHER_COUNT:
        has_other_count();
        break;
    case NO_MEMORY:
        PyErr_NoMemory();
        break;
    case SHORTER:
        PyErr_SetString(PyExc_EOFError, "the file has become shorter");
        break;
    case SYSTEM:
        errno = lines->error;
        PyErr_SetFromErrno(PyExc_OSError);
        break;
    }
}

PyDoc_STRVAR(weave_doc, "weave(rows, columns, into, /)\n--\n\nWrite the rows as JSON lines over a bytearray; how many bytes they take.");

static PyObject *weave(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_ssize_t rows;
    PyObject *given;
    Lines lines = {.number = NAN};
    if (!PyArg_ParseTuple(arguments, "nO!O!", &rows, &PyList_Type, &given, &PyByteArray_Type, &lines.array)) return NULL;
    Py_ssize_t count = PyList_GET_SIZE(given);
    Column *columns = PyMem_Calloc((size_t)(count ? count : 1), sizeof(Column));
    if (columns == NULL) return PyErr_NoMemory();
    int failed = 0;
    for (Py_ssize_t i = 0; i < count && !failed; i++) failed = read_column(PyList_GET_ITEM(given, i), rows, &columns[i]) < 0;
    if (!failed) {
        lines.away = PyEval_SaveThread();
        failed = weave_rows(rows, columns, count, &lines) < 0;
        PyEval_RestoreThread(lines.away);
        raise_outcome(&lines);
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyMem_Free(columns[i].texts);
        PyBuffer_Release(&columns[i].numbers);
    }
    PyMem_Free(columns);
    return failed ? NULL : PyLong_FromSsize_t(lines.used);
}

static PyMethodDef methods[] = {{"weave", weave, METH_VARARGS, weave_doc}, {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_weave", "JSON lines from columns.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__weave(void) {
    prepare_numbers();
    return PyModule_Create(&definition);
}
