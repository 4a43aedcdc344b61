/* The prompt of a rollout line, for `_rows.c`: the canonical spelling that `prompts.py` hashes, when it is a text or nothing but
messages of text. Any other prompt is odd and told as it stands, for Python to spell. */

#pragma once

#include "_json.h"
#include "_memory.h"

typedef struct {
    String role, content;
} Message;

typedef struct {
    Buffer messages; /* Message */
    int is_odd;
    unsigned seen;
} Prompt;

typedef struct {
    Message message;
    Prompt *prompt;
    unsigned seen;
} PromptItem;

/* A text of this prompt, whose spelling must be the canonical one. */
static int read_prompt_text(Prompt *prompt, Cursor *c, String *found) {
    if (*c->at == '"' && read_string(c, found) < 0) return LEFT;
    if (found->text && !found->is_respelled) return TAKEN;
    prompt->is_odd = 1;
    return found->text ? TAKEN : skip_value(c);
}

static int read_prompt_item_member(void *context, const String *key, Cursor *c) {
    PromptItem *item = context;
    Prompt *prompt = item->prompt;
    unsigned number = is_text(key, "role") ? 0 : is_text(key, "content") ? 1 : is_text(key, "type") ? 2 : 3;
    if (number == 3 || key->has_escapes || see(&item->seen, number) < 0) {
        prompt->is_odd = 1;
        return skip_value(c);
    }
    if (number == 0) return read_prompt_text(prompt, c, &item->message.role);
    if (number == 1) return read_prompt_text(prompt, c, &item->message.content);
    if (*c->at == 'n') return read_word(c, "null");
    String type = {0};
    int result = read_prompt_text(prompt, c, &type);
    if (!is_text(&type, "message")) prompt->is_odd = 1;
    return result;
}

static int read_prompt_item(void *context, const String *key, Cursor *c) {
    Prompt *prompt = context;
    PromptItem item = {.prompt = prompt};
    (void)key;
    if (*c->at != '{') {
        prompt->is_odd = 1;
        return skip_value(c);
    }
    if (read_object(c, read_prompt_item_member, &item) < 0) return LEFT;
    if (!item.message.role.text || !item.message.content.text) prompt->is_odd = 1;
    buffer_add(&prompt->messages, &item.message, sizeof item.message);
    return TAKEN;
}

/* A member of `responses_create_params`. */
static int read_params_member(void *context, const String *key, Cursor *c) {
    Prompt *prompt = context;
    if (key->has_escapes) prompt->is_odd = 1;
    if (is_text(key, "instructions")) {
        prompt->is_odd |= *c->at != 'n' || see(&prompt->seen, 0) < 0;
        return skip_value(c);
    }
    if (!is_text(key, "input")) return skip_value(c);
    if (see(&prompt->seen, 1) < 0) prompt->is_odd = 1;
    if (*c->at == '[') return read_array(c, read_prompt_item, prompt);
    Message message = {.role = {.text = "user", .size = 4}};
    if (read_prompt_text(prompt, c, &message.content) < 0) return LEFT;
    buffer_add(&prompt->messages, &message, sizeof message);
    return TAKEN;
}

static void add_spelled(Buffer *buffer, const Prompt *prompt) {
    const Message *messages = (const Message *)prompt->messages.data;
    for (size_t i = 0; i < prompt->messages.size / sizeof(Message); i++) {
        const char *opening = i ? ",{\"content\":\"" : "[{\"content\":\"";
        buffer_add(buffer, opening, strlen(opening));
        buffer_add(buffer, messages[i].content.text, messages[i].content.size);
        buffer_add(buffer, "\",\"role\":\"", 10);
        buffer_add(buffer, messages[i].role.text, messages[i].role.size);
        buffer_add(buffer, "\"}", 2);
    }
    add_byte(buffer, ']');
}
