/* Growable buffers and a table of interned names.

Allocation failure is not reported by each call: it sets the `has_failed` flag that all buffers of one reader share, and the caller
checks the flag before it uses a result. */

#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    char *data;
    size_t size, room;
    int *has_failed;
} Buffer;

/* Room for `more` bytes at the end; NULL after an allocation failure. */
static char *buffer_extend(Buffer *buffer, size_t more) {
    if (*buffer->has_failed) return NULL;
    if (more > SIZE_MAX / 4 - buffer->size) {
        *buffer->has_failed = 1;
        return NULL;
    }
    if (buffer->size + more > buffer->room) {
        size_t room = buffer->room ? buffer->room : 256;
        while (room < buffer->size + more) room *= 2;
        char *data = realloc(buffer->data, room);
        if (!data) {
            *buffer->has_failed = 1;
            return NULL;
        }
        buffer->data = data;
        buffer->room = room;
    }
    char *end = buffer->data + buffer->size;
    buffer->size += more;
    return end;
}

static void buffer_add(Buffer *buffer, const void *data, size_t size) {
    if (!size) return;
    char *end = buffer_extend(buffer, size);
    if (end) memcpy(end, data, size);
}

static void buffer_free(Buffer *buffer) {
    free(buffer->data);
    buffer->data = NULL;
    buffer->size = buffer->room = 0;
}

static void add_byte(Buffer *buffer, uint8_t value) { buffer_add(buffer, &value, sizeof value); }
static void add_int32(Buffer *buffer, int32_t value) { buffer_add(buffer, &value, sizeof value); }
static void add_int64(Buffer *buffer, int64_t value) { buffer_add(buffer, &value, sizeof value); }
static void add_double(Buffer *buffer, double value) { buffer_add(buffer, &value, sizeof value); }

/* Interned names: each distinct text has a number, from 0 in order of appearance. An open-addressing hash table. */

typedef struct {
    Buffer text, ends; /* ends: int64, one per name: where it ends in `text` */
    int32_t *slots;    /* number of the name, or -1 */
    size_t mask;       /* slots - 1; the number of slots is a power of two */
    int32_t count;
    int32_t expected; /* guess for the next lookup: rows repeat the same names in the same order */
} Names;

static uint64_t name_hash(const char *text, size_t size) { /* FNV-1a */
    uint64_t hash = 14695981039346656037ULL;
    for (size_t i = 0; i < size; i++) hash = (hash ^ (uint8_t)text[i]) * 1099511628211ULL;
    return hash ^ (hash >> 29);
}

static const char *name_at(const Names *names, int32_t number, size_t *size) {
    const int64_t *ends = (const int64_t *)names->ends.data;
    int64_t start = number ? ends[number - 1] : 0;
    *size = (size_t)(ends[number] - start);
    return names->text.data ? names->text.data + start : "";
}

static int is_name(const Names *names, int32_t number, const char *text, size_t size) {
    size_t known_size;
    const char *known = name_at(names, number, &known_size);
    return known_size == size && (!size || memcmp(known, text, size) == 0);
}

static int names_grow(Names *names) {
    size_t room = names->slots ? (names->mask + 1) * 2 : 64;
    int32_t *slots = malloc(room * sizeof *slots);
    if (!slots) {
        *names->text.has_failed = 1;
        return -1;
    }
    memset(slots, 0xff, room * sizeof *slots);
    for (int32_t number = 0; number < names->count; number++) {
        size_t size;
        const char *text = name_at(names, number, &size);
        size_t slot = name_hash(text, size) & (room - 1);
        while (slots[slot] >= 0) slot = (slot + 1) & (room - 1);
        slots[slot] = number;
    }
    free(names->slots);
    names->slots = slots;
    names->mask = room - 1;
    return 0;
}

/* The number of a name, new or known; -1 after an allocation failure. */
static int32_t names_number(Names *names, const char *text, size_t size) {
    int32_t number = names->expected < names->count ? names->expected : 0;
    if (names->count && is_name(names, number, text, size)) {
        names->expected = number + 1;
        return number;
    }
    if ((!names->slots || (size_t)names->count * 2 > names->mask) && names_grow(names) < 0) return -1;
    size_t slot = name_hash(text, size) & names->mask;
    for (; names->slots[slot] >= 0; slot = (slot + 1) & names->mask) {
        if (!is_name(names, names->slots[slot], text, size)) continue;
        names->expected = names->slots[slot] + 1;
        return names->slots[slot];
    }
    buffer_add(&names->text, text, size);
    add_int64(&names->ends, (int64_t)names->text.size);
    if (*names->text.has_failed) return -1;
    return names->slots[slot] = names->count++;
}

static void names_free(Names *names) {
    buffer_free(&names->text);
    buffer_free(&names->ends);
    free(names->slots);
    names->slots = NULL;
    names->mask = 0;
    names->count = names->expected = 0;
}
