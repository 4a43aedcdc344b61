/* What one rollout line says, read into a Row without copying. Nothing is kept before the whole line is known to be ordinary.
`row_facts.py` defines what the facts mean. */

#pragma once

#include "_json.h"
#include "_memory.h"

typedef struct {
    int32_t column; /* number of the key */
    int is_text;
    double number;
    String text;
} Field;

typedef struct {
    String outer, inner; /* the dotted name outer.inner, or inner alone when outer has no text */
    double number;
} Nested;

typedef struct {
    Buffer fields; /* Field: top-level numbers and texts */
    Buffer nested; /* Nested: numbers of usage and reward_components */
    Buffer answer; /* String: pieces of the answer */
    Buffer pieces; /* String: pieces of the item that is being read */
    int has_params, has_chat, has_response;
    int has_same_params; /* byte for byte those of the row before */
    String params;       /* as in the line */
    String agent, status, reason, model;
    String verifier, fingerprint, mode;
    double started, seconds, verify_seconds;
    int32_t turns, tool_calls;
    int in_turn, has_refusal, has_token_ids;
    int is_last_call; /* the last item is a function call */
    String outer;     /* prefix of the numbers that are being read */
    unsigned seen_response, seen_own, seen_agent, seen_details;
} Row;

typedef struct {
    String type, role;
    int is_content_text;
    String content;
    size_t token_ids; /* bytes of the value */
    int has_refusal;
    unsigned seen;
    Row *row;
} Item;

typedef struct {
    String type, text;
    unsigned seen;
} ContentPart;

static int read_part_member(void *context, const String *key, Cursor *c) {
    ContentPart *part = context;
    if (key->has_escapes) return LEFT;
    if (is_text(key, "type")) return see(&part->seen, 0) < 0 ? LEFT : read_plain(c, &part->type);
    if (is_text(key, "text")) {
        if (see(&part->seen, 1) < 0) return LEFT;
        if (*c->at == '"') return read_string(c, &part->text);
    }
    return skip_value(c);
}

static int read_part(void *context, const String *key, Cursor *c) {
    Item *item = context;
    ContentPart part = {0};
    (void)key;
    if (read_object(c, read_part_member, &part) < 0) return LEFT;
    if (is_text(&part.type, "output_text")) {
        if (part.text.text) buffer_add(&item->row->pieces, &part.text, sizeof part.text);
    } else if (is_text(&part.type, "refusal")) {
        item->has_refusal = 1;
    }
    return TAKEN;
}

static int read_item_member(void *context, const String *key, Cursor *c) {
    Item *item = context;
    if (key->has_escapes) return LEFT;
    if (is_text(key, "type")) return see(&item->seen, 0) < 0 ? LEFT : read_plain(c, &item->type);
    if (is_text(key, "role")) return see(&item->seen, 1) < 0 ? LEFT : read_plain(c, &item->role);
    if (is_text(key, "content")) {
        if (see(&item->seen, 2) < 0) return LEFT;
        if (*c->at == '[') return read_array(c, read_part, item);
        if (*c->at == 'n') return read_word(c, "null");
        item->is_content_text = 1;
        return *c->at == '"' ? read_string(c, &item->content) : LEFT;
    }
    if (is_text(key, "generation_token_ids")) {
        const char *start = c->at;
        if (see(&item->seen, 3) < 0 || skip_value(c) < 0) return LEFT;
        item->token_ids = (size_t)(c->at - start);
        return TAKEN;
    }
    return skip_value(c);
}

/* One item of the output. Counts turns as `row_facts.describe_answer` does. */
static int read_item(void *context, const String *key, Cursor *c) {
    Row *row = context;
    Item item = {.row = row};
    (void)key;
    row->pieces.size = 0;
    if (read_object(c, read_item_member, &item) < 0) return LEFT;
    row->is_last_call = is_text(&item.type, "function_call");
    if (is_text(&item.type, "message")) {
        if (item.role.text && !is_text(&item.role, "assistant")) { /* a simulated user speaks */
            row->in_turn = 0;
            return TAKEN;
        }
        buffer_add(&row->answer, row->pieces.data, row->pieces.size);
        row->has_refusal |= item.has_refusal;
        if (item.is_content_text && item.content.size) buffer_add(&row->answer, &item.content, sizeof item.content);
    } else if (row->is_last_call) {
        row->tool_calls++;
    } else if (!is_text(&item.type, "reasoning")) {
        row->in_turn = 0;
        return TAKEN;
    }
    if (!row->in_turn) {
        row->turns++;
        row->in_turn = 1;
    }
    row->has_token_ids |= item.token_ids > 2;
    return TAKEN;
}

/* An item, or a list of items: some agents write one list per step. */
static int read_items(void *context, const String *key, Cursor *c) {
    return *c->at == '[' ? read_array(c, read_item, context) : read_item(context, key, c);
}

static int add_nested(Row *row, const String *key, double number) {
    Nested nested = {row->outer, *key, number};
    if (key->has_escapes) return LEFT;
    buffer_add(&row->nested, &nested, sizeof nested);
    return TAKEN;
}

static int read_detail(void *context, const String *key, Cursor *c) {
    double number;
    return read_float(c, &number) < 0 ? LEFT : add_nested(context, key, number);
}

static int read_usage_member(void *context, const String *key, Cursor *c) {
    Row *row = context;
    if (*c->at != '{') return read_detail(row, key, c);
    if (key->has_escapes) return LEFT;
    row->outer = *key;
    int result = read_object(c, read_detail, row);
    row->outer.text = NULL;
    return result;
}

/* A number or a bool counts; anything else is skipped. */
static int read_component(void *context, const String *key, Cursor *c) {
    Row *row = context;
    double number = NAN;
    int result = TAKEN;
    if (*c->at == 't' || *c->at == 'f') {
        number = *c->at == 't';
        result = read_word(c, number > 0 ? "true" : "false");
    } else if (*c->at == '-' || (*c->at >= '0' && *c->at <= '9')) {
        result = read_number(c, &number);
    } else {
        result = skip_value(c);
    }
    return result < 0 ? LEFT : add_nested(row, key, number);
}

static int read_details_member(void *context, const String *key, Cursor *c) {
    Row *row = context;
    if (key->has_escapes) return LEFT;
    if (is_text(key, "reason")) return see(&row->seen_details, 0) < 0 ? LEFT : read_plain(c, &row->reason);
    return skip_value(c);
}

static int read_response_member(void *context, const String *key, Cursor *c) {
    Row *row = context;
    unsigned *seen = &row->seen_response;
    if (key->has_escapes) return LEFT;
    if (is_text(key, "output")) {
        if (see(seen, 0) < 0) return LEFT;
        return *c->at == 'n' ? read_word(c, "null") : read_array(c, read_items, row);
    }
    if (is_text(key, "usage")) {
        if (see(seen, 1) < 0) return LEFT;
        return *c->at == 'n' ? read_word(c, "null") : read_object(c, read_usage_member, row);
    }
    if (is_text(key, "incomplete_details")) {
        if (see(seen, 2) < 0) return LEFT;
        return *c->at == 'n' ? read_word(c, "null") : read_object(c, read_details_member, row);
    }
    if (is_text(key, "status")) return see(seen, 3) < 0 ? LEFT : read_plain(c, &row->status);
    if (is_text(key, "model")) return see(seen, 4) < 0 ? LEFT : read_plain(c, &row->model);
    return skip_value(c);
}

static int read_agent_member(void *context, const String *key, Cursor *c) {
    Row *row = context;
    if (key->has_escapes) return LEFT;
    if (is_text(key, "name")) return see(&row->seen_agent, 0) < 0 ? LEFT : read_plain(c, &row->agent);
    return skip_value(c);
}

static int read_own_member(void *context, const String *key, Cursor *c) {
    Row *row = context;
    const char *names[] = {"started", "seconds", "verify_seconds", "verifier", "fingerprint", "mode"};
    double *numbers[] = {&row->started, &row->seconds, &row->verify_seconds};
    String *texts[] = {&row->verifier, &row->fingerprint, &row->mode};
    if (key->has_escapes) return LEFT;
    for (unsigned i = 0; i < 6; i++)
        if (is_text(key, names[i])) {
            if (see(&row->seen_own, i) < 0) return LEFT;
            return i < 3 ? read_float(c, numbers[i]) : read_plain(c, texts[i - 3]);
        }
    return skip_value(c);
}
