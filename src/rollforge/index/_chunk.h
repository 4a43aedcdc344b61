/* The rollouts of one chunk as columns, for `_rows.c`: how a line is read into them, whole or not at all. */

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_hash.h"
#include "_json.h"
#include "_memory.h"
#include "_prompt.h"
#include "_row.h"

enum {
    MAX_TEXT = 256, /* characters of a top-level text that becomes a column, as in facts.py */
    MAX_RAW = 1000, /* bytes of one; a longer text of few characters is left */
};

typedef enum { PLAIN, MUST_BE_NUMBER, RESPONSE, PARAMS, AGENT, OWN, COMPONENTS, CHAT } Role;

typedef struct {
    Role role;
    int64_t last_line; /* where it was seen last: twice in one line is a key twice */
    Buffer numbers;    /* double per row, up to the last that has one */
    Buffer is_valid, ends, text; /* per row: a byte and an int32, likewise */
} Column;

typedef struct {
    Names names;
    Buffer numbers; /* int32: which name, or -1 */
} Words;

typedef struct {
    PyObject_HEAD
    int has_failed;
    Names keys, dotted;
    Buffer columns; /* Column of each key */
    Buffer besides; /* Buffer of double of each dotted name */
    Row row;
    int32_t count;
    Buffer line, offset, length;                              /* int64 */
    Words agent, finish, model, verifier, fingerprint, mode;
    Buffer started, seconds, verify_seconds;                  /* double */
    Buffer turns, calls;                                      /* int32 */
    Buffer flags;                                             /* byte */
    Buffer params_at, params_size, agent_at, agent_size;      /* int32: the values as they stand in the line; size 0: not told */
    Buffer answer_hash, characters; /* int64, int32; characters -1: Python finds out both */
    Buffer prompt_hash, prompt;     /* int64, int32; which odd prompt since the start, else IS_HASHED or HAS_NONE */
    Buffer said, said_ends, said_rows, said_characters; /* answers that Python must see: text, int64, int32, int32 */
    Buffer odd_prompts, odd_ends;      /* parameters as they stand in the line, int64 */
    Buffer scratch;
    Buffer last_params; /* of the row before, */
    int64_t last_hash;  /* whose hash this is, */
    int32_t last_prompt; /* and whose number */
    int32_t odd_count;
    int32_t looked_at;
    Buffer starts; /* uint32 each */
} Rows;

enum { HAS_RESPONSE = 1, HAS_REFUSED = 2, HAS_TOKEN_IDS = 4 };

enum { HAS_NONE = -1, IS_HASHED = -2 };

enum { BUFFERS = 36, WORDS_COLUMNS = 6 };

/* Every buffer that outlives a line, for making, emptying and freeing them alike. */
static size_t each_buffer(Rows *rows, Buffer **found) {
    Buffer *all[] = {
        &rows->columns, &rows->besides, &rows->line, &rows->offset, &rows->length, &rows->started, &rows->seconds, &rows->verify_seconds, &rows->turns,
        &rows->calls, &rows->flags, &rows->params_at, &rows->params_size, &rows->agent_at, &rows->agent_size, &rows->answer_hash,
        &rows->characters, &rows->prompt_hash, &rows->prompt, &rows->said, &rows->said_ends, &rows->said_rows, &rows->said_characters,
        &rows->odd_prompts, &rows->odd_ends, &rows->scratch, &rows->last_params, &rows->keys.text, &rows->keys.ends, &rows->dotted.text, &rows->dotted.ends, &rows->row.fields, &rows->row.besides, &rows->row.said, &rows->row.parts,
        &rows->row.prompt.messages,
    };
    _Static_assert(sizeof all / sizeof *all == BUFFERS, "as many as callers have room for");
    memcpy(found, all, sizeof all);
    return BUFFERS;
}

/* Likewise every column of words, under its name. */
static void each_words(Rows *rows, Words **found, const char **names) {
    Words *all[] = {&rows->agent, &rows->finish, &rows->model, &rows->verifier, &rows->fingerprint, &rows->mode};
    const char *known[] = {"agent", "finish_reason", "model", "verifier", "fingerprint", "mode"};
    memcpy(found, all, sizeof all);
    if (names) memcpy(names, known, sizeof known);
}

static Role role_of(const String *key) {
    static const struct {
        const char *name;
        Role role;
    } known[] = {
        {"reward", MUST_BE_NUMBER}, {"_ng_task_index", MUST_BE_NUMBER}, {"_ng_rollout_index", MUST_BE_NUMBER},
        {"_ng_attempt_index", MUST_BE_NUMBER}, {"response", RESPONSE}, {"responses_create_params", PARAMS},
        {"agent_ref", AGENT}, {"_rf", OWN}, {"reward_components", COMPONENTS}, {"messages", CHAT},
        {"prompt", CHAT}, {"completion", CHAT},
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
    return (Column *)rows->columns.data + *number;
}

static int read_scalar(Row *row, Column *column, int32_t number, Cursor *c) {
    Field field = {.column = number};
    switch (*c->at) {
    case '"':
        if (column->role == MUST_BE_NUMBER || read_string(c, &field.text) < 0) return LEFT;
        if (field.text.characters > MAX_TEXT && !field.text.is_respelled) return TAKEN;
        if (field.text.size > MAX_RAW) return LEFT;
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
        /* The rollouts of a task mostly follow each other: the same bytes are the same object again. */
        row->has_same_params = last->size && (size_t)(c->end - start) > last->size && !memcmp(start, last->data, last->size);
        if (row->has_same_params) c->at += last->size;
        else if (read_object(c, read_params_member, &row->prompt) < 0) return LEFT;
        row->params.text = start;
        row->params.size = (size_t)(c->at - start);
        return TAKEN;
    }
    case AGENT:
        if (read_object(c, read_agent_member, row) < 0) return LEFT;
        row->agent_ref.text = start;
        row->agent_ref.size = (size_t)(c->at - start);
        return TAKEN;
    case OWN: return read_object(c, read_own_member, row);
    case COMPONENTS: {
        row->outer = *key;
        int result = read_object(c, read_component, row);
        row->outer.text = NULL;
        return result;
    }
    case CHAT: row->has_chat = 1; /* fall through */
    default: return read_scalar(row, column, number, c);
    }
}

static void pad_doubles(Buffer *buffer, int32_t count) {
    while (buffer->size < (size_t)count * sizeof(double) && !*buffer->has_failed) add_double(buffer, NAN);
}

static void pad_texts(Column *column, int32_t count) {
    while (column->is_valid.size < (size_t)count && !*column->is_valid.has_failed) {
        add_byte(&column->is_valid, 0);
        add_int32(&column->ends, (int32_t)column->text.size);
    }
}

static int add_utf8(Buffer *buffer, int code) {
    char bytes[4];
    size_t size;
    if (code < 0x80) {
        bytes[0] = (char)code;
        size = 1;
    } else if (code < 0x800) {
        bytes[0] = (char)(0xc0 | code >> 6);
        bytes[1] = (char)(0x80 | (code & 0x3f));
        size = 2;
    } else if (code < 0x10000) {
        bytes[0] = (char)(0xe0 | code >> 12);
        bytes[1] = (char)(0x80 | (code >> 6 & 0x3f));
        bytes[2] = (char)(0x80 | (code & 0x3f));
        size = 3;
    } else {
        bytes[0] = (char)(0xf0 | code >> 18);
        bytes[1] = (char)(0x80 | (code >> 12 & 0x3f));
        bytes[2] = (char)(0x80 | (code >> 6 & 0x3f));
        bytes[3] = (char)(0x80 | (code & 0x3f));
        size = 4;
    }
    buffer_add(buffer, bytes, size);
    return 1;
}

/* Adds a text without its escapes and returns its characters; -1 for half a surrogate pair. */
static int add_unescaped(Buffer *buffer, const String *text) {
    int characters = 0;
    const char *at = text->text, *end = at + text->size;
    while (at < end) {
        if (*at != '\\') {
            characters += ((uint8_t)*at & 0xc0) != 0x80;
            add_byte(buffer, (uint8_t)*at++);
            continue;
        }
        static const char spelled[] = "bfnrt", meant[] = "\b\f\n\r\t";
        const char *place = strchr(spelled, at[1]);
        if (at[1] != 'u') {
            characters += add_utf8(buffer, place ? meant[place - spelled] : at[1]);
            at += 2;
            continue;
        }
        int code = hex_value(at + 2);
        at += 6;
        if (code >= 0xd800 && code < 0xe000) {
            int low = code < 0xdc00 && end - at >= 6 && at[0] == '\\' && at[1] == 'u' ? hex_value(at + 2) : 0;
            if (low < 0xdc00 || low >= 0xe000) return -1;
            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
            at += 6;
        }
        characters += add_utf8(buffer, code);
    }
    return characters;
}

/* Texts whose length is known only without their escapes: those too long are dropped; a broken one leaves the row. */
static int respell(Rows *rows, Buffer *scratch) {
    Field *fields = (Field *)rows->row.fields.data;
    size_t count = rows->row.fields.size / sizeof(Field);
    for (size_t i = 0; i < count; i++) {
        if (!fields[i].is_text || !fields[i].text.is_respelled) continue;
        scratch->size = 0;
        int characters = add_unescaped(scratch, &fields[i].text);
        if (characters < 0) return LEFT;
        if (characters > MAX_TEXT) fields[i].column = -1;
    }
    return TAKEN;
}

static void commit_fields(Rows *rows) {
    Field *fields = (Field *)rows->row.fields.data;
    size_t count = rows->row.fields.size / sizeof(Field);
    for (size_t i = 0; i < count; i++) {
        if (fields[i].column < 0) continue;
        Column *column = (Column *)rows->columns.data + fields[i].column;
        if (!fields[i].is_text) {
            pad_doubles(&column->numbers, rows->count);
            add_double(&column->numbers, fields[i].number);
            continue;
        }
        pad_texts(column, rows->count);
        if (fields[i].text.has_escapes) add_unescaped(&column->text, &fields[i].text);
        else buffer_add(&column->text, fields[i].text.text, fields[i].text.size);
        add_byte(&column->is_valid, 1);
        add_int32(&column->ends, (int32_t)column->text.size);
    }
}

static void commit_besides(Rows *rows) {
    Beside *besides = (Beside *)rows->row.besides.data;
    size_t count = rows->row.besides.size / sizeof(Beside);
    Buffer *name = &rows->row.parts;
    for (size_t i = 0; i < count; i++) {
        name->size = 0;
        if (besides[i].outer.text) {
            buffer_add(name, besides[i].outer.text, besides[i].outer.size);
            add_byte(name, '.');
        }
        buffer_add(name, besides[i].inner.text, besides[i].inner.size);
        if (rows->has_failed) return;
        int32_t number = names_number(&rows->dotted, name->data, name->size);
        if (number < 0) return;
        if ((size_t)number * sizeof(Buffer) == rows->besides.size) {
            Buffer numbers = {.has_failed = &rows->has_failed};
            buffer_add(&rows->besides, &numbers, sizeof numbers);
            if (rows->has_failed) return;
        }
        Buffer *numbers = (Buffer *)rows->besides.data + number;
        pad_doubles(numbers, rows->count);
        if (numbers->size == (size_t)(rows->count + 1) * sizeof(double)) numbers->size -= sizeof(double); /* the last counts */
        add_double(numbers, besides[i].number);
    }
}

static void add_word(Words *words, const String *word) {
    add_int32(&words->numbers, word->text ? names_number(&words->names, word->text, word->size) : -1);
}

static String finish_of(const Row *row) {
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

static void commit_prompt(Rows *rows) {
    const Row *row = &rows->row;
    if (!row->has_params) {
        add_int64(&rows->prompt_hash, 0);
        add_int32(&rows->prompt, HAS_NONE);
        return;
    }
    if (!row->has_same_params) {
        rows->last_params.size = 0;
        buffer_add(&rows->last_params, row->params.text, row->params.size);
        if (row->prompt.is_odd || !row->prompt.messages.size) {
            buffer_add(&rows->odd_prompts, row->params.text, row->params.size);
            add_int64(&rows->odd_ends, (int64_t)rows->odd_prompts.size);
            rows->last_hash = 0;
            rows->last_prompt = rows->odd_count++;
        } else {
            rows->scratch.size = 0;
            add_spelled(&rows->scratch, &row->prompt);
            if (rows->has_failed) return;
            rows->last_hash = (int64_t)hash_of_text(rows->scratch.data, rows->scratch.size);
            rows->last_prompt = IS_HASHED;
        }
    }
    add_int64(&rows->prompt_hash, rows->last_hash);
    add_int32(&rows->prompt, rows->last_prompt);
}

/* The answer's text: its only piece where it stands, or all of them joined. */
static String answer_of(Rows *rows) {
    const String *pieces = (const String *)rows->row.said.data;
    size_t count = rows->row.said.size / sizeof(String);
    if (count == 1) return *pieces;
    String answer = {.text = ""};
    rows->scratch.size = 0;
    for (size_t i = 0; i < count; i++) {
        buffer_add(&rows->scratch, pieces[i].text, pieces[i].size);
        answer.characters += pieces[i].characters;
        answer.is_respelled |= pieces[i].is_respelled;
    }
    if (rows->scratch.size && !rows->has_failed) {
        answer.text = rows->scratch.data;
        answer.size = rows->scratch.size;
    }
    return answer;
}

/* Whether a text begins with one of the four bytes that error messages begin with, whatever the size of the letters. */
static int may_be_error(const Rows *rows, const String *text) {
    uint32_t start;
    const uint32_t *starts = (const uint32_t *)rows->starts.data;
    if (text->size < sizeof start) return 0;
    memcpy(&start, text->text, sizeof start);
    start |= 0x20202020;
    for (size_t i = 0; i < rows->starts.size / sizeof start; i++)
        if (starts[i] == start) return 1;
    return 0;
}

static void commit_answer(Rows *rows) {
    String answer = answer_of(rows);
    int32_t characters = answer.is_respelled ? -1 : (int32_t)answer.characters;
    add_int64(&rows->answer_hash, answer.is_respelled ? 0 : (int64_t)hash_of_text(answer.text, answer.size));
    add_int32(&rows->characters, characters);
    if (!rows->row.has_response || (characters > rows->looked_at && !may_be_error(rows, &answer))) return;
    buffer_add(&rows->said, answer.text, answer.size);
    add_int64(&rows->said_ends, (int64_t)rows->said.size);
    add_int32(&rows->said_rows, rows->count);
    add_int32(&rows->said_characters, characters);
}

/* Where a value stands in its line, so that it can be cut out without reading the line again. */
static void add_piece(Buffer *at, Buffer *size, const String *value, const char *line) {
    int is_told = value->text && value->size <= INT32_MAX && value->text - line <= INT32_MAX;
    add_int32(at, is_told ? (int32_t)(value->text - line) : 0);
    add_int32(size, is_told ? (int32_t)value->size : 0);
}

static void commit_pieces(Rows *rows, const char *line) {
    const String none = {0};
    int is_whole = !rows->row.has_chat; /* else other values say what was asked, too */
    add_piece(&rows->params_at, &rows->params_size, is_whole ? &rows->row.params : &none, line);
    add_piece(&rows->agent_at, &rows->agent_size, is_whole ? &rows->row.agent_ref : &none, line);
}

static void commit(Rows *rows, int64_t line, int64_t offset, const char *start, int64_t length) {
    const Row *row = &rows->row;
    String finish = finish_of(row);
    add_int64(&rows->line, line);
    add_int64(&rows->offset, offset);
    add_int64(&rows->length, length);
    commit_fields(rows);
    commit_besides(rows);
    commit_prompt(rows);
    commit_answer(rows);
    commit_pieces(rows, start);
    add_word(&rows->agent, &row->agent);
    add_word(&rows->finish, &finish);
    add_word(&rows->model, &row->model);
    add_word(&rows->verifier, &row->verifier);
    add_word(&rows->fingerprint, &row->fingerprint);
    add_word(&rows->mode, &row->mode);
    add_double(&rows->started, row->started);
    add_double(&rows->seconds, row->seconds);
    add_double(&rows->verify_seconds, row->verify_seconds);
    add_int32(&rows->turns, row->turns);
    add_int32(&rows->calls, row->calls);
    add_byte(&rows->flags, (uint8_t)((row->has_response ? HAS_RESPONSE : 0) | (row->has_refused ? HAS_REFUSED : 0) |
                                     (row->has_token_ids ? HAS_TOKEN_IDS : 0)));
    rows->count++;
}

/* Reads the line that begins there; `stop` is where it ends. No newline is part of valid JSON here, so that none need be looked for. */
static int read_row(Rows *rows, const char *start, const char *end, int64_t line, const char **stop) {
    Row *row = &rows->row;
    Row empty = {.fields = row->fields, .besides = row->besides, .said = row->said, .parts = row->parts,
                 .prompt = {.messages = row->prompt.messages},
                 .started = NAN, .seconds = NAN, .verify_seconds = NAN};
    *row = empty;
    row->fields.size = row->besides.size = row->said.size = row->parts.size = row->prompt.messages.size = 0;
    Cursor c = {start, end, 0};
    Reading reading = {rows, line};
    skip_space(&c);
    if (read_object(&c, read_top_member, &reading) < 0) return LEFT;
    skip_space(&c);
    if ((c.at < end && *c.at != '\n') || (row->has_chat && !row->has_params)) return LEFT;
    *stop = c.at;
    return respell(rows, &row->parts);
}
