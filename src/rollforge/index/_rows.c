/* Reads ordinary rollout and task lines into columns.

It is optional and decides nothing alone. It takes a line only when the line is strictly valid JSON and UTF-8 of the expected shape.
Every other line (torn, a key twice, NaN, a huge number, chat form, a wrong type, ...) is left to `python_reader.py`, which says what
is wrong with it. For the lines that it takes, both readers must make the same columns; property tests compare them.

    rows = Rows()
    lines, left = rows.take(block, first_line, offset)    whole lines; `left`: (line, start, end) as int64 for each line left
    rows.drain()                                          answers (unescaped), their sizes in characters, and new prompts (raw)
    rows.finish()                                         the columns of all rows taken; resets the object
    leading_keys(block)                                      (task, sample, end) as int64 for each whole line: its key, if it begins
                                                          with one as our own rows do, else -1; nothing else is read

A line that is left leaves no trace in the columns. Parsing touches no Python object and runs without the interpreter lock. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_memory.h"
#include "_row.h"

#ifndef SOURCE_DIGEST
#define SOURCE_DIGEST ""
#endif

enum { MAX_TEXT = 256 }; /* characters of a top-level text that becomes a column; the same as schema.MAX_TEXT */

typedef enum { PLAIN, MUST_BE_NUMBER, RESPONSE, PARAMS, AGENT, OWN, COMPONENTS, CHAT, TYPED } Role;

typedef struct {
    Role role;
    int64_t last_line;           /* the line in which the key was last seen: twice in one line is a repeated key */
    Buffer numbers;              /* double per row, up to the last row that has one */
    Buffer is_valid, ends, text; /* byte and int32 per row, likewise; ends: int32 */
} Column;

typedef struct {
    Names names;
    Buffer numbers; /* int32 per row: which name, or -1 */
} Words;

enum { NO_PROMPT = -1 };
enum { HAS_RESPONSE = 1, HAS_REFUSAL = 2, HAS_TOKEN_IDS = 4 };
enum { WORDS_COLUMNS = 6 };

typedef struct {
    PyObject_HEAD
    int has_failed;
    Row row; /* the line that is being read */
    int32_t count;
    Names keys, dotted;
    Buffer columns; /* Column of each key */
    Buffer nested;  /* Buffer of double of each dotted name */
    Words words[WORDS_COLUMNS];
    Buffer line, offset, length;             /* int64 */
    Buffer started, seconds, verify_seconds; /* double */
    Buffer turns, tool_calls, answer_chars;  /* int32 */
    Buffer flags;                            /* byte */
    Buffer prompt;                           /* int32: number of the prompt since the start, or NO_PROMPT */
    Buffer answers, answer_ends, new_chars;  /* text, int64, int32: one answer per row, until they are drained */
    Buffer prompts, prompt_ends;             /* text, int64: responses_create_params as in the line */
    Buffer last_params;
    int32_t prompt_count;
} Rows;

static const char *const words_names[WORDS_COLUMNS] = {"agent", "finish_reason", "model", "verifier", "fingerprint", "mode"};

/* The buffers that hold one value per row, with the names under which `finish` returns them. */
enum { FIXED_COLUMNS = 11 };

static void fixed_columns(Rows *rows, Buffer **buffers, const char **names) {
    Buffer *all[] = {&rows->line,    &rows->offset,         &rows->length, &rows->started,    &rows->seconds,
                     &rows->verify_seconds, &rows->turns, &rows->tool_calls, &rows->answer_chars, &rows->flags, &rows->prompt};
    const char *known[] = {"line",  "offset",     "length",       "started", "seconds", "verify_seconds",
                           "turns", "tool_calls", "answer_chars", "flags",   "prompt"};
    _Static_assert(sizeof all / sizeof *all == FIXED_COLUMNS, "one buffer per column");
    _Static_assert(sizeof known / sizeof *known == FIXED_COLUMNS, "one name per column");
    memcpy(buffers, all, sizeof all);
    if (names) memcpy(names, known, sizeof known);
}

/* ---- reading a line ---- */

static Role role_of(const String *key) {
    static const struct {
        const char *name;
        Role role;
    } known[] = {
        {"reward", MUST_BE_NUMBER}, {"_ng_task_index", MUST_BE_NUMBER}, {"_ng_rollout_index", MUST_BE_NUMBER},
        {"_ng_attempt_index", MUST_BE_NUMBER}, {"response", RESPONSE}, {"responses_create_params", PARAMS},
        {"agent_ref", AGENT}, {"_rf", OWN}, {"reward_components", COMPONENTS}, {"messages", CHAT},
        {"prompt", CHAT}, {"completion", CHAT}, {"invocations", TYPED}, {"_ng_task_id", TYPED}, {"resolved_row", TYPED}, {"task_input", TYPED},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (is_text(key, known[i].name)) return known[i].role;
    return PLAIN;
}

static Column *column_of(Rows *rows, const String *key, int32_t *number) {
    *number = names_number(&rows->keys, key->text, key->size);
    if (*number < 0) return NULL;
    if ((size_t)*number * sizeof(Column) == rows->columns.size) {
        Column column = {.role = role_of(key), .last_line = -1};
        Buffer *buffers[] = {&column.numbers, &column.is_valid, &column.ends, &column.text};
        for (int i = 0; i < 4; i++) buffers[i]->has_failed = &rows->has_failed;
        buffer_add(&rows->columns, &column, sizeof column);
        if (rows->has_failed) return NULL;
    }
    return (Column *)(void *)rows->columns.data + *number;
}

static int read_scalar(Row *row, const Column *column, int32_t number, Cursor *c) {
    Field field = {.column = number};
    switch (*c->at) {
    case '"':
        if (column->role == MUST_BE_NUMBER || read_string(c, &field.text) < 0) return LEFT;
        if (field.text.characters > MAX_TEXT) return TAKEN;
        field.is_text = 1;
        break;
    case '{':
    case '[': return column->role == MUST_BE_NUMBER ? LEFT : skip_value(c);
    case 'n': return read_word(c, "null");
    case 't':
        field.number = 1;
        if (read_word(c, "true") < 0) return LEFT;
        break;
    case 'f':
        if (read_word(c, "false") < 0) return LEFT;
        break;
    default:
        if (read_number(c, &field.number) < 0) return LEFT;
    }
    buffer_add(&row->fields, &field, sizeof field);
    return TAKEN;
}

typedef struct {
    Rows *rows;
    int64_t line;
} Reading;

static int read_top_member(void *context, const String *key, Cursor *c) {
    Reading *reading = context;
    Row *row = &reading->rows->row;
    int32_t number;
    if (key->has_escapes) return LEFT;
    Column *column = column_of(reading->rows, key, &number);
    if (!column || column->last_line == reading->line) return LEFT;
    column->last_line = reading->line;
    const char *start = c->at;
    switch (column->role) {
    case RESPONSE:
        if (*c->at == 'n') return read_word(c, "null");
        row->has_response = 1;
        return read_object(c, read_response_member, row);
    case PARAMS: {
        const Buffer *last = &reading->rows->last_params;
        row->has_params = 1;
        /* Rollouts of one task often follow each other: the same bytes are the same, valid object again. */
        row->has_same_params = last->size && (size_t)(c->end - start) > last->size && !memcmp(start, last->data, last->size);
        if (row->has_same_params) c->at += last->size;
        else if (*c->at != '{' || skip_value(c) < 0) return LEFT;
        row->params.text = start;
        row->params.size = (size_t)(c->at - start);
        return TAKEN;
    }
    case AGENT: return read_object(c, read_agent_member, row);
    case OWN: return read_object(c, read_own_member, row);
    case COMPONENTS: {
        row->outer = *key;
        int result = read_object(c, read_component, row);
        row->outer.text = NULL;
        return result;
    }
    case TYPED: return *c->at == 'n' ? read_word(c, "null") : LEFT;
    case CHAT: row->has_chat = 1; /* fall through */
    default: return read_scalar(row, column, number, c);
    }
}

/* Reads the line that begins at `start`; `stop` is where it ends. Valid JSON holds no raw newline, so none need be searched for. */
static int read_row(Rows *rows, const char *start, const char *end, int64_t line, const char **stop) {
    Row *row = &rows->row;
    Row empty = {.fields = row->fields, .nested = row->nested, .answer = row->answer, .pieces = row->pieces,
                 .started = NAN, .seconds = NAN, .verify_seconds = NAN};
    *row = empty;
    row->fields.size = row->nested.size = row->answer.size = row->pieces.size = 0;
    Cursor c = {start, end, 0};
    Reading reading = {rows, line};
    skip_space(&c);
    if (read_object(&c, read_top_member, &reading) < 0) return LEFT;
    skip_space(&c);
    if ((c.at < end && *c.at != '\n') || (row->has_chat && !row->has_params)) return LEFT;
    *stop = c.at;
    return rows->has_failed ? LEFT : TAKEN;
}

/* ---- adding a row to the columns ---- */

static void pad_doubles(Buffer *buffer, int32_t count) {
    while (buffer->size < (size_t)count * sizeof(double) && !*buffer->has_failed) add_double(buffer, NAN);
}

static void pad_texts(Column *column, int32_t count) {
    while (column->is_valid.size < (size_t)count && !*column->is_valid.has_failed) {
        add_byte(&column->is_valid, 0);
        add_int32(&column->ends, (int32_t)column->text.size);
    }
}

static void add_utf8(Buffer *buffer, int code) {
    uint8_t bytes[4];
    size_t size;
    if (code < 0x80) {
        bytes[0] = (uint8_t)code;
        size = 1;
    } else if (code < 0x800) {
        bytes[0] = (uint8_t)(0xc0 | code >> 6);
        bytes[1] = (uint8_t)(0x80 | (code & 0x3f));
        size = 2;
    } else if (code < 0x10000) {
        bytes[0] = (uint8_t)(0xe0 | code >> 12);
        bytes[1] = (uint8_t)(0x80 | (code >> 6 & 0x3f));
        bytes[2] = (uint8_t)(0x80 | (code & 0x3f));
        size = 3;
    } else {
        bytes[0] = (uint8_t)(0xf0 | code >> 18);
        bytes[1] = (uint8_t)(0x80 | (code >> 12 & 0x3f));
        bytes[2] = (uint8_t)(0x80 | (code >> 6 & 0x3f));
        bytes[3] = (uint8_t)(0x80 | (code & 0x3f));
        size = 4;
    }
    buffer_add(buffer, bytes, size);
}

/* Adds a string (valid: `read_string` has checked it) without its escapes. */
static void add_unescaped(Buffer *buffer, const String *string) {
    static const char spelled[] = "bfnrt", meant[] = "\b\f\n\r\t";
    const char *at = string->text, *end = at + string->size;
    while (at < end) {
        const char *escape = string->has_escapes ? memchr(at, '\\', (size_t)(end - at)) : NULL;
        const char *plain_end = escape ? escape : end;
        buffer_add(buffer, at, (size_t)(plain_end - at));
        if (!escape) return;
        if (escape[1] == 'u') {
            int code = 0;
            size_t size = unicode_escape(escape, end, &code);
            add_utf8(buffer, code);
            at = escape + size;
        } else {
            const char *letter = strchr(spelled, escape[1]);
            add_byte(buffer, (uint8_t)(letter ? meant[letter - spelled] : escape[1]));
            at = escape + 2;
        }
    }
}

static void commit_fields(Rows *rows) {
    const Field *fields = (const Field *)(void *)rows->row.fields.data;
    size_t count = rows->row.fields.size / sizeof(Field);
    for (size_t i = 0; i < count; i++) {
        Column *column = (Column *)(void *)rows->columns.data + fields[i].column;
        if (!fields[i].is_text) {
            pad_doubles(&column->numbers, rows->count);
            add_double(&column->numbers, fields[i].number);
            continue;
        }
        pad_texts(column, rows->count);
        add_unescaped(&column->text, &fields[i].text);
        add_byte(&column->is_valid, 1);
        add_int32(&column->ends, (int32_t)column->text.size);
    }
}

static void commit_nested(Rows *rows) {
    const Nested *nested = (const Nested *)(void *)rows->row.nested.data;
    size_t count = rows->row.nested.size / sizeof(Nested);
    Buffer *name = &rows->row.pieces;
    for (size_t i = 0; i < count; i++) {
        name->size = 0;
        if (nested[i].outer.text) {
            buffer_add(name, nested[i].outer.text, nested[i].outer.size);
            add_byte(name, '.');
        }
        buffer_add(name, nested[i].inner.text, nested[i].inner.size);
        if (rows->has_failed) return;
        int32_t number = names_number(&rows->dotted, name->data ? name->data : "", name->size);
        if (number < 0) return;
        if ((size_t)number * sizeof(Buffer) == rows->nested.size) {
            Buffer numbers = {.has_failed = &rows->has_failed};
            buffer_add(&rows->nested, &numbers, sizeof numbers);
            if (rows->has_failed) return;
        }
        Buffer *numbers = (Buffer *)(void *)rows->nested.data + number;
        pad_doubles(numbers, rows->count);
        if (numbers->size == (size_t)(rows->count + 1) * sizeof(double)) numbers->size -= sizeof(double); /* the last counts */
        add_double(numbers, nested[i].number);
    }
}

static String finish_reason(const Row *row) {
    String length = {.text = "length", .size = 6}, stop = {.text = "stop", .size = 4}, none = {0};
    String calls = {.text = "tool_calls", .size = 10};
    if (row->reason.text && row->reason.size) {
        int is_length = is_text(&row->reason, "max_output_tokens") || is_text(&row->reason, "max_tokens");
        return is_length ? length : row->reason;
    }
    if (is_text(&row->status, "failed") || is_text(&row->status, "cancelled")) return row->status;
    if (!is_text(&row->status, "completed")) return none;
    return row->is_last_call ? calls : stop;
}

static void commit_words(Rows *rows) {
    const Row *row = &rows->row;
    String finish = finish_reason(row);
    const String *words[WORDS_COLUMNS] = {&row->agent, &finish, &row->model, &row->verifier, &row->fingerprint, &row->mode};
    for (int i = 0; i < WORDS_COLUMNS; i++) {
        int32_t number = words[i]->text ? names_number(&rows->words[i].names, words[i]->text, words[i]->size) : -1;
        add_int32(&rows->words[i].numbers, number);
    }
}

static void commit_prompt(Rows *rows) {
    const Row *row = &rows->row;
    if (!row->has_params) {
        add_int32(&rows->prompt, NO_PROMPT);
        return;
    }
    if (!row->has_same_params) {
        rows->last_params.size = 0;
        buffer_add(&rows->last_params, row->params.text, row->params.size);
        buffer_add(&rows->prompts, row->params.text, row->params.size);
        add_int64(&rows->prompt_ends, (int64_t)rows->prompts.size);
        rows->prompt_count++;
    }
    add_int32(&rows->prompt, rows->prompt_count - 1);
}

static void commit_answer(Rows *rows) {
    const String *pieces = (const String *)(void *)rows->row.answer.data;
    size_t count = rows->row.answer.size / sizeof(String), characters = 0;
    for (size_t i = 0; i < count; i++) {
        add_unescaped(&rows->answers, &pieces[i]);
        characters += pieces[i].characters;
    }
    add_int64(&rows->answer_ends, (int64_t)rows->answers.size);
    add_int32(&rows->answer_chars, (int32_t)characters);
    add_int32(&rows->new_chars, (int32_t)characters);
}

static void commit(Rows *rows, int64_t line, int64_t offset, int64_t length) {
    const Row *row = &rows->row;
    add_int64(&rows->line, line);
    add_int64(&rows->offset, offset);
    add_int64(&rows->length, length);
    commit_fields(rows);
    commit_nested(rows);
    commit_words(rows);
    commit_prompt(rows);
    commit_answer(rows);
    add_double(&rows->started, row->started);
    add_double(&rows->seconds, row->seconds);
    add_double(&rows->verify_seconds, row->verify_seconds);
    add_int32(&rows->turns, row->turns);
    add_int32(&rows->tool_calls, row->tool_calls);
    add_byte(&rows->flags, (uint8_t)((row->has_response ? HAS_RESPONSE : 0) | (row->has_refusal ? HAS_REFUSAL : 0) |
                                     (row->has_token_ids ? HAS_TOKEN_IDS : 0)));
    rows->count++;
}

static int is_blank(const char *start, const char *end) {
    for (; start < end; start++)
        if (!strchr(" \t\r\v\f", *start) || !*start) return 0;
    return 1;
}

/* Reads all lines of a block; returns how many there were. */
static int64_t read_block(Rows *rows, const char *text, const char *end, int64_t line, int64_t offset, Buffer *left) {
    const char *start = text;
    int64_t lines = 0;
    for (; start < end && !rows->has_failed; lines++) {
        const char *stop = NULL;
        if (read_row(rows, start, end, line + lines, &stop) == TAKEN) {
            commit(rows, line + lines, offset + (start - text), stop - start);
        } else {
            stop = memchr(start, '\n', (size_t)(end - start));
            if (!stop) stop = end;
            if (!is_blank(start, stop)) {
                add_int64(left, line + lines);
                add_int64(left, start - text);
                add_int64(left, stop - text);
            }
        }
        start = stop < end ? stop + 1 : end;
    }
    return lines;
}

/* ---- the Python object ---- */

static PyObject *bytes_of(const Buffer *buffer) {
    return PyBytes_FromStringAndSize(buffer->data, (Py_ssize_t)buffer->size);
}

/* Returns the bytes and frees the buffer at once, so that no more than one column is held twice. */
static PyObject *take_bytes(Buffer *buffer) {
    PyObject *bytes = bytes_of(buffer);
    buffer_free(buffer);
    return bytes;
}

static PyObject *drain_bytes(Buffer *buffer) {
    PyObject *bytes = bytes_of(buffer);
    buffer->size = 0;
    return bytes;
}

static PyObject *rows_take(PyObject *self, PyObject *arguments) {
    Rows *rows = (Rows *)self;
    Py_buffer given;
    long long line, offset;
    if (!PyArg_ParseTuple(arguments, "y*LL", &given, &line, &offset)) return NULL;
    Buffer left = {.has_failed = &rows->has_failed};
    const char *text = given.buf;
    int64_t lines;
    Py_BEGIN_ALLOW_THREADS
    lines = read_block(rows, text, text + given.len, line, offset, &left);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&given);
    PyObject *found = rows->has_failed ? PyErr_NoMemory() : Py_BuildValue("LN", (long long)lines, bytes_of(&left));
    buffer_free(&left);
    return found;
}

static PyObject *rows_drain(PyObject *self, PyObject *nothing) {
    Rows *rows = (Rows *)self;
    (void)nothing;
    return Py_BuildValue("NNNNN", drain_bytes(&rows->answers), drain_bytes(&rows->answer_ends), drain_bytes(&rows->new_chars),
                         drain_bytes(&rows->prompts), drain_bytes(&rows->prompt_ends));
}

static int has_number(const Buffer *numbers) {
    const double *values = (const double *)(void *)numbers->data;
    for (size_t i = 0; i < numbers->size / sizeof(double); i++)
        if (!isnan(values[i])) return 1;
    return 0;
}

static PyObject *name_of(const Names *names, int32_t number) {
    size_t size;
    const char *text = name_at(names, number, &size);
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)size, NULL);
}

/* Appends a new reference to a list and drops it; -1 when either is missing. */
static int append_new(PyObject *list, PyObject *item) {
    int result = list && item ? PyList_Append(list, item) : -1;
    Py_XDECREF(item);
    return result;
}

static int append_numbers(Rows *rows, PyObject *list, const Names *names, int32_t number, Buffer *numbers) {
    if (!has_number(numbers)) return 0;
    pad_doubles(numbers, rows->count);
    return append_new(list, Py_BuildValue("NN", name_of(names, number), take_bytes(numbers)));
}

static int append_texts(Rows *rows, PyObject *list, int32_t number, Column *column) {
    if (!column->is_valid.size) return 0;
    pad_texts(column, rows->count);
    return append_new(list, Py_BuildValue("NNNN", name_of(&rows->keys, number), take_bytes(&column->is_valid),
                                          take_bytes(&column->ends), take_bytes(&column->text)));
}

/* name -> (its distinct words, which of them each row has) */
static PyObject *words_of(Rows *rows) {
    PyObject *words = PyDict_New();
    for (int i = 0; words && i < WORDS_COLUMNS; i++) {
        const Names *names = &rows->words[i].names;
        PyObject *texts = PyList_New(0);
        for (int32_t number = 0; texts && number < names->count; number++)
            if (append_new(texts, name_of(names, number)) < 0) Py_CLEAR(texts);
        PyObject *pair = texts ? Py_BuildValue("NN", texts, take_bytes(&rows->words[i].numbers)) : NULL;
        if (!pair || PyDict_SetItemString(words, words_names[i], pair) < 0) Py_CLEAR(words);
        Py_XDECREF(pair);
    }
    return words;
}

static PyObject *fixed_of(Rows *rows) {
    Buffer *buffers[FIXED_COLUMNS];
    const char *names[FIXED_COLUMNS];
    fixed_columns(rows, buffers, names);
    PyObject *fixed = PyDict_New();
    for (int i = 0; fixed && i < FIXED_COLUMNS; i++) {
        PyObject *bytes = take_bytes(buffers[i]);
        if (!bytes || PyDict_SetItemString(fixed, names[i], bytes) < 0) Py_CLEAR(fixed);
        Py_XDECREF(bytes);
    }
    return fixed;
}

static void reset_buffer(Rows *rows, Buffer *buffer) {
    buffer_free(buffer);
    buffer->has_failed = &rows->has_failed;
}

static void reset_names(Rows *rows, Names *names) {
    names_free(names);
    names->text.has_failed = names->ends.has_failed = &rows->has_failed;
}

/* Frees all memory; the object is as new. */
static void rows_reset(Rows *rows) {
    for (size_t i = 0; i < rows->columns.size / sizeof(Column); i++) {
        Column *column = (Column *)(void *)rows->columns.data + i;
        buffer_free(&column->numbers);
        buffer_free(&column->is_valid);
        buffer_free(&column->ends);
        buffer_free(&column->text);
    }
    for (size_t i = 0; i < rows->nested.size / sizeof(Buffer); i++) buffer_free((Buffer *)(void *)rows->nested.data + i);
    Buffer *fixed[FIXED_COLUMNS];
    fixed_columns(rows, fixed, NULL);
    for (int i = 0; i < FIXED_COLUMNS; i++) reset_buffer(rows, fixed[i]);
    Buffer *others[] = {&rows->columns, &rows->nested, &rows->answers, &rows->answer_ends, &rows->new_chars, &rows->prompts, &rows->prompt_ends,
                        &rows->last_params, &rows->row.fields, &rows->row.nested, &rows->row.answer, &rows->row.pieces};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) reset_buffer(rows, others[i]);
    for (int i = 0; i < WORDS_COLUMNS; i++) {
        reset_buffer(rows, &rows->words[i].numbers);
        reset_names(rows, &rows->words[i].names);
    }
    reset_names(rows, &rows->keys);
    reset_names(rows, &rows->dotted);
    rows->count = rows->prompt_count = 0;
    rows->has_failed = 0;
}

static PyObject *rows_finish(PyObject *self, PyObject *nothing) {
    Rows *rows = (Rows *)self;
    (void)nothing;
    PyObject *numbers = PyList_New(0), *texts = PyList_New(0), *nested = PyList_New(0);
    int has_failed = !numbers || !texts || !nested;
    for (int32_t i = 0; !has_failed && i < rows->keys.count; i++) {
        Column *column = (Column *)(void *)rows->columns.data + i;
        has_failed = append_numbers(rows, numbers, &rows->keys, i, &column->numbers) < 0 ||
                     append_texts(rows, texts, i, column) < 0;
    }
    for (int32_t i = 0; !has_failed && i < rows->dotted.count; i++)
        has_failed = append_numbers(rows, nested, &rows->dotted, i, (Buffer *)(void *)rows->nested.data + i) < 0;
    PyObject *found = NULL;
    if (!has_failed && !rows->has_failed)
        found = Py_BuildValue("iOOONN", rows->count, numbers, texts, nested, words_of(rows), fixed_of(rows));
    else if (!PyErr_Occurred())
        PyErr_NoMemory();
    Py_XDECREF(numbers);
    Py_XDECREF(texts);
    Py_XDECREF(nested);
    rows_reset(rows);
    return found;
}

static Py_ssize_t rows_length(PyObject *self) { return ((Rows *)self)->count; }

static PyObject *rows_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "")) return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc); /* the stable ABI hides the type's members */
    Rows *rows = (Rows *)allocate(type, 0); /* zeroed */
    if (rows) rows_reset(rows);
    return (PyObject *)rows;
}

static void rows_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    rows_reset((Rows *)self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* Reads `name` and up to 18 digits; returns where they end, or NULL. */
static const char *read_named_number(const char *at, const char *end, const char *name, int64_t *number) {
    size_t size = strlen(name);
    if ((size_t)(end - at) < size || memcmp(at, name, size)) return NULL;
    const char *digits = at += size;
    for (*number = 0; at < end && at - digits < 18 && *at >= '0' && *at <= '9'; at++) *number = *number * 10 + (*at - '0');
    return at > digits ? at : NULL;
}

static void add_leading_keys(const char *start, const char *end, Buffer *found) {
    const char *text = start, *stop;
    while (start < end && (stop = memchr(start, '\n', (size_t)(end - start)))) {
        int64_t task = -1, sample = -1;
        const char *at = read_named_number(start, stop, "{\"_ng_task_index\":", &task);
        if (at) at = read_named_number(at, stop, ",\"_ng_rollout_index\":", &sample);
        int has_key = at && at < stop && (*at == ',' || *at == '}');
        start = stop + 1;
        add_int64(found, has_key ? task : -1);
        add_int64(found, has_key ? sample : -1);
        add_int64(found, start - text);
    }
}

static PyObject *leading_keys(PyObject *self, PyObject *arguments) {
    Py_buffer block;
    int has_failed = 0;
    Buffer keys = {.has_failed = &has_failed};
    (void)self;
    if (!PyArg_ParseTuple(arguments, "y*", &block)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    add_leading_keys(block.buf, (const char *)block.buf + block.len, &keys);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&block);
    PyObject *found = has_failed ? PyErr_NoMemory() : bytes_of(&keys);
    buffer_free(&keys);
    return found;
}

static PyMethodDef functions[] = {
    {"leading_keys", leading_keys, METH_VARARGS, "leading_keys(block) -> (task, sample, end) of each whole line"},
    {NULL, NULL, 0, NULL},
};

static PyMethodDef rows_methods[] = {
    {"take", rows_take, METH_VARARGS, "take(block, first_line, offset) -> (lines, left): read whole lines"},
    {"drain", rows_drain, METH_NOARGS, "drain() -> (answers, ends, characters, prompts, ends): texts since the last call"},
    {"finish", rows_finish, METH_NOARGS, "finish() -> (count, numbers, texts, nested, words, fixed): all columns; resets the object"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot rows_slots[] = {
    {Py_tp_doc, (void *)"The rows of one chunk, as columns."}, {Py_tp_new, (void *)rows_new}, {Py_tp_dealloc, (void *)rows_dealloc},
    {Py_tp_methods, rows_methods}, {Py_sq_length, (void *)rows_length}, {0, NULL},
};

static PyType_Spec rows_spec = {
    .name = "rollforge.index._rows.Rows", .basicsize = sizeof(Rows), .flags = Py_TPFLAGS_DEFAULT, .slots = rows_slots};

static int add_members(PyObject *module) {
    if (!plain_locale) plain_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!plain_locale) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    if (PyModule_AddStringConstant(module, "SOURCE_DIGEST", SOURCE_DIGEST) < 0) return -1;
    PyObject *type = PyType_FromSpec(&rows_spec);
    int result = type ? PyModule_AddObjectRef(module, "Rows", type) : -1;
    Py_XDECREF(type);
    return result;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)add_members}, {0, NULL}};
static PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT, .m_name = "_rows", .m_doc = "Ordinary rollout lines as columns.", .m_methods = functions,
    .m_slots = slots};

PyMODINIT_FUNC PyInit__rows(void) { return PyModuleDef_Init(&module); }
