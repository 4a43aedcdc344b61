/* This module reads ordinary rollout lines into columns, many times faster than Python can.

It is optional and never decides anything alone: a line is taken only when it is strictly valid JSON and UTF-8 of the expected
shape; every other one (torn, a key twice, NaN, a number too large, chat form, a wrong type, ...) is left to the Python code in
`rollouts.py`, which says what is odd about it. For the lines that are taken, both must make the same columns: the tests compare them.

    rows = Rows(looked_at, starts)                        which answers are handed out: see below
    lines, left = rows.take(block, first_line, offset)    whole lines; those left as (line, start, end)
    lines, left, offset = rows.read(file, offset, end, first_line, most)
                                                          the same of a file, as far as it gets: see below
    rows.drain()                                          the texts that Python must see, since the last time
    rows.finish()                                         the columns of all rows taken; empties it

`read` takes the lines that begin before `end`, from one that begins at `offset`; `left` says where they stand in the file, and the
offset returned is that of the line that comes next. It comes back sooner when there are `most` rows, when Python has much to see,
after MOST_BYTES, so that a signal need not wait, and before a line that has no newline or is too long.

Python sees the answers that are short, that begin like an error message (with one of `starts`, four bytes each, letters small) or
that equal texts may spell otherwise, and the prompts that are odd. Of all others it gets the hash.

Nothing is written to the columns before the whole line has been read, so a line that is left leaves no trace. Parsing holds no
Python object and runs without the interpreter's lock. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_chunk.h"
#include "_file.h"

enum {
    MOST_BYTES = 128 << 20,
    MOST_SEEN = 4 << 20, /* bytes for Python to see */
    LEFT_BYTES = 3 * sizeof(int64_t),
};

typedef struct {
    const char *text, *end;
    const char *limit; /* no line is read that begins there or beyond */
    int64_t offset;    /* of the text in its file */
    int64_t places;    /* of the text, from which those of lines that are left count */
} Block;

static int is_blank(const char *start, const char *end) {
    for (; start < end; start++)
        if (!strchr(" \t\r\v\f", *start) || !*start) return 0;
    return 1;
}

/* How many lines were read; `text` is behind them then. */
static int64_t read_block(Rows *rows, Block *block, int64_t line, Buffer *left) {
    const char *start = block->text;
    int64_t lines = 0;
    for (; start < block->limit && !rows->has_failed; lines++) {
        const char *stop = NULL;
        int64_t begin = start - block->text;
        if (read_row(rows, start, block->end, line + lines, &stop) == TAKEN) {
            commit(rows, line + lines, block->offset + begin, start, stop - start);
        } else {
            stop = memchr(start, '\n', (size_t)(block->end - start));
            if (!stop) stop = block->end;
            if (!is_blank(start, stop)) {
                add_int64(left, line + lines);
                add_int64(left, block->places + begin);
                add_int64(left, block->places + (stop - block->text));
            }
        }
        start = stop + 1;
    }
    block->text = start;
    return lines;
}

static int is_full(const Rows *rows, const Buffer *left, int32_t most) {
    return rows->count + (int64_t)(left->size / LEFT_BYTES) >= most || rows->said.size + rows->odd_prompts.size >= MOST_SEEN;
}

static int64_t read_file(Rows *rows, Window *window, int64_t end, int64_t line, int32_t most, Buffer *left) {
    int64_t lines = 0, last = window->at + MOST_BYTES;
    while (window->at < end && window->at < last && !is_full(rows, left, most) && !rows->has_failed) {
        size_t whole = window_fill(window);
        if (!whole) break;
        const char *text = window_text(window), *stop = text + whole;
        Block block = {text, stop, end - window->at < (int64_t)whole ? text + (end - window->at) : stop, window->at, window->at};
        lines += read_block(rows, &block, line + lines, left);
        window_pass(window, (size_t)(block.text - text));
    }
    if (window->error == ENOMEM) rows->has_failed = 1;
    return lines;
}

static PyObject *take_bytes(Buffer *buffer) {
    PyObject *bytes = PyBytes_FromStringAndSize(buffer->data, (Py_ssize_t)buffer->size);
    buffer->size = 0;
    return bytes;
}

/* The same of a buffer that is not used again: what is held twice is never more than one column. */
static PyObject *last_bytes(Buffer *buffer) {
    PyObject *bytes = take_bytes(buffer);
    free(buffer->data);
    buffer->data = NULL;
    buffer->room = 0;
    return bytes;
}

static PyObject *rows_take(PyObject *self, PyObject *arguments) {
    Rows *rows = (Rows *)self;
    Py_buffer given;
    long long line, offset;
    if (!PyArg_ParseTuple(arguments, "y*LL", &given, &line, &offset)) return NULL;
    Buffer left = {.has_failed = &rows->has_failed};
    const char *text = given.buf, *end = text + given.len;
    Block block = {text, end, end, offset, 0};
    int64_t lines;
    Py_BEGIN_ALLOW_THREADS
    lines = read_block(rows, &block, line, &left);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&given);
    if (rows->has_failed) {
        free(left.data);
        return PyErr_NoMemory();
    }
    PyObject *found = Py_BuildValue("LN", (long long)lines, take_bytes(&left));
    free(left.data);
    return found;
}

static PyObject *rows_read(PyObject *self, PyObject *arguments) {
    Rows *rows = (Rows *)self;
    int file, most;
    long long offset, end, line;
    if (!PyArg_ParseTuple(arguments, "iLLLi", &file, &offset, &end, &line, &most)) return NULL;
    Buffer left = {.has_failed = &rows->has_failed};
    Window window = {.file = file, .at = offset};
    int64_t lines;
    Py_BEGIN_ALLOW_THREADS
    lines = read_file(rows, &window, end, line, most, &left);
    Py_END_ALLOW_THREADS
    free(window.memory);
    PyObject *found = NULL;
    if (rows->has_failed) {
        PyErr_NoMemory();
    } else if (window.error) {
        errno = window.error;
        PyErr_SetFromErrno(PyExc_OSError);
    } else {
        found = Py_BuildValue("LNL", (long long)lines, take_bytes(&left), (long long)window.at);
    }
    free(left.data);
    return found;
}

static PyObject *rows_drain(PyObject *self, PyObject *nothing) {
    Rows *rows = (Rows *)self;
    (void)nothing;
    return Py_BuildValue("NNNNNN", take_bytes(&rows->said), take_bytes(&rows->said_ends), take_bytes(&rows->said_rows),
                         take_bytes(&rows->said_characters), take_bytes(&rows->odd_prompts), take_bytes(&rows->odd_ends));
}

static int has_number(const Buffer *numbers) {
    const double *values = (const double *)numbers->data;
    for (size_t i = 0; i < numbers->size / sizeof(double); i++)
        if (!isnan(values[i])) return 1;
    return 0;
}

static PyObject *text_of(const Names *names, int32_t number) {
    size_t size;
    const char *text = name_at(names, number, &size);
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)size, NULL);
}

/* Appends to a list and drops the reference; -1 when either could not be made. */
static int append_new(PyObject *list, PyObject *item) {
    int result = list && item ? PyList_Append(list, item) : -1;
    Py_XDECREF(item);
    return result;
}

static int append_numbers(Rows *rows, PyObject *list, const Names *names, int32_t number, Buffer *numbers) {
    if (!has_number(numbers)) return 0;
    pad_doubles(numbers, rows->count);
    return append_new(list, Py_BuildValue("NN", text_of(names, number), last_bytes(numbers)));
}

static int append_texts(Rows *rows, PyObject *list, int32_t number, Column *column) {
    if (!column->is_valid.size) return 0;
    pad_texts(column, rows->count);
    return append_new(list, Py_BuildValue("NNNN", text_of(&rows->keys, number), last_bytes(&column->is_valid),
                                          last_bytes(&column->ends), last_bytes(&column->text)));
}

static PyObject *texts_of(const Names *names) {
    PyObject *list = PyList_New(0);
    for (int32_t number = 0; number < names->count; number++)
        if (append_new(list, text_of(names, number)) < 0) {
            Py_CLEAR(list);
            break;
        }
    return list;
}

/* name -> (its words, which of them each row has) */
static PyObject *words_of(Rows *rows) {
    Words *all[WORDS_COLUMNS];
    const char *names[WORDS_COLUMNS];
    each_words(rows, all, names);
    PyObject *words = PyDict_New();
    for (int i = 0; words && i < WORDS_COLUMNS; i++) {
        PyObject *pair = Py_BuildValue("NN", texts_of(&all[i]->names), last_bytes(&all[i]->numbers));
        if (!pair || PyDict_SetItemString(words, names[i], pair) < 0) Py_CLEAR(words);
        Py_XDECREF(pair);
    }
    return words;
}

static PyObject *fixed_of(Rows *rows) {
    struct {
        const char *name;
        Buffer *buffer;
    } all[] = {
        {"line", &rows->line}, {"offset", &rows->offset}, {"length", &rows->length},
        {"started", &rows->started}, {"seconds", &rows->seconds},
        {"verify_seconds", &rows->verify_seconds}, {"turns", &rows->turns}, {"tool_calls", &rows->calls},
        {"prompt_hash", &rows->prompt_hash}, {"prompt", &rows->prompt}, {"answer_hash", &rows->answer_hash},
        {"answer_chars", &rows->characters}, {"flags", &rows->flags}, {"params_at", &rows->params_at},
        {"params_size", &rows->params_size}, {"agent_at", &rows->agent_at}, {"agent_size", &rows->agent_size},
    };
    PyObject *fixed = PyDict_New();
    for (size_t i = 0; fixed && i < sizeof all / sizeof *all; i++) {
        PyObject *bytes = last_bytes(all[i].buffer);
        if (!bytes || PyDict_SetItemString(fixed, all[i].name, bytes) < 0) Py_CLEAR(fixed);
        Py_XDECREF(bytes);
    }
    return fixed;
}

static void names_free(Names *names) {
    free(names->slots);
    names->slots = NULL;
    names->count = 0;
    names->mask = 0;
}

/* Frees everything; what follows starts anew. */
static void rows_clear(Rows *rows) {
    Buffer *buffers[BUFFERS];
    for (size_t i = 0; i < rows->columns.size / sizeof(Column); i++) {
        Column *column = (Column *)rows->columns.data + i;
        free(column->numbers.data);
        free(column->is_valid.data);
        free(column->ends.data);
        free(column->text.data);
    }
    for (size_t i = 0; i < rows->besides.size / sizeof(Buffer); i++) free(((Buffer *)rows->besides.data + i)->data);
    size_t count = each_buffer(rows, buffers);
    for (size_t i = 0; i < count; i++) {
        free(buffers[i]->data);
        *buffers[i] = (Buffer){.has_failed = &rows->has_failed};
    }
    Words *words[WORDS_COLUMNS];
    each_words(rows, words, NULL);
    for (int i = 0; i < WORDS_COLUMNS; i++) {
        Buffer *own[] = {&words[i]->numbers, &words[i]->names.text, &words[i]->names.ends};
        for (int k = 0; k < 3; k++) {
            free(own[k]->data);
            *own[k] = (Buffer){.has_failed = &rows->has_failed};
        }
        names_free(&words[i]->names);
    }
    names_free(&rows->keys);
    names_free(&rows->dotted);
    rows->count = rows->odd_count = 0;
    rows->has_failed = 0;
}

static PyObject *rows_finish(PyObject *self, PyObject *nothing) {
    Rows *rows = (Rows *)self;
    (void)nothing;
    PyObject *numbers = PyList_New(0), *texts = PyList_New(0), *besides = PyList_New(0);
    int has_failed = !numbers || !texts || !besides;
    for (int32_t i = 0; !has_failed && i < rows->keys.count; i++) {
        Column *column = (Column *)rows->columns.data + i;
        has_failed = append_numbers(rows, numbers, &rows->keys, i, &column->numbers) < 0 ||
                     append_texts(rows, texts, i, column) < 0;
    }
    for (int32_t i = 0; !has_failed && i < rows->dotted.count; i++)
        has_failed = append_numbers(rows, besides, &rows->dotted, i, (Buffer *)rows->besides.data + i) < 0;
    PyObject *found = NULL;
    if (!has_failed && !rows->has_failed)
        found = Py_BuildValue("iOOONN", rows->count, numbers, texts, besides, words_of(rows), fixed_of(rows));
    else if (!PyErr_Occurred())
        PyErr_NoMemory();
    Py_XDECREF(numbers);
    Py_XDECREF(texts);
    Py_XDECREF(besides);
    rows_clear(rows);
    return found;
}

static Py_ssize_t rows_length(PyObject *self) { return ((Rows *)self)->count; }

static PyObject *rows_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    int looked_at;
    Py_buffer starts;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "iy*", &looked_at, &starts)) return NULL;
    Rows *rows = (Rows *)type->tp_alloc(type, 0); /* all zero */
    if (rows) {
        rows_clear(rows);
        rows->looked_at = looked_at;
        rows->starts.has_failed = &rows->has_failed;
        buffer_add(&rows->starts, starts.buf, (size_t)starts.len);
    }
    PyBuffer_Release(&starts);
    if (rows && rows->has_failed) {
        Py_DECREF(rows);
        return PyErr_NoMemory();
    }
    return (PyObject *)rows;
}

static void rows_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    rows_clear((Rows *)self);
    free(((Rows *)self)->starts.data);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef rows_methods[] = {
    {"take", rows_take, METH_VARARGS, "take(block, first_line, offset) -> (lines, left): read whole lines"},
    {"read", rows_read, METH_VARARGS, "read(file, offset, end, first_line, most) -> (lines, left, offset): read a file's whole lines"},
    {"drain", rows_drain, METH_NOARGS, "drain() -> (said, ends, rows, characters, odd prompts, ends): what Python must see, since the last time"},
    {"finish", rows_finish, METH_NOARGS, "finish() -> (count, numbers, texts, besides, words, fixed): all columns; empties it"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot rows_slots[] = {
    {Py_tp_doc, "The rollouts of one chunk, as columns."}, {Py_tp_new, rows_new}, {Py_tp_dealloc, rows_dealloc},
    {Py_tp_methods, rows_methods}, {Py_sq_length, rows_length}, {0, NULL},
};

static PyType_Spec rows_spec = {
    .name = "rollforge.index._rows.Rows", .basicsize = sizeof(Rows), .flags = Py_TPFLAGS_DEFAULT, .slots = rows_slots};

static int add_types(PyObject *module) {
    if (!plain_locale) plain_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!plain_locale) return PyErr_SetFromErrno(PyExc_OSError), -1;
    prepare_hash();
    PyObject *type = PyType_FromSpec(&rows_spec);
    int result = type ? PyModule_AddObjectRef(module, "Rows", type) : -1;
    Py_XDECREF(type);
    return result;
}

static PyObject *py_hash_text(PyObject *module, PyObject *given) {
    Py_buffer text;
    (void)module;
    if (PyObject_GetBuffer(given, &text, PyBUF_SIMPLE) < 0) return NULL;
    uint64_t hash = hash_of_text(text.buf, (size_t)text.len);
    PyBuffer_Release(&text);
    return PyLong_FromUnsignedLongLong(hash);
}

static PyMethodDef functions[] = {
    {"hash_text", py_hash_text, METH_O, "hash_text(text) -> int: as hashes.py defines it"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_types}, {0, NULL}};
static PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT, .m_name = "_rows", .m_doc = "Ordinary rollout lines as columns.", .m_methods = functions,
    .m_slots = slots};

PyMODINIT_FUNC PyInit__rows(void) { return PyModuleDef_Init(&module); }
