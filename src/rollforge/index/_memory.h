/* Growable memory for `_rows.c`: buffers, and names under numbers. Nothing here fails loudly: once memory has run out, the shared
`has_failed` is set, and whoever holds it looks before a result is used. */

#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    char *data;
    size_t size, room;
    int *has_failed; /* shared by all buffers of a Rows: set once memory has run out */
} Buffer;

static char *buffer_extend(Buffer *buffer, size_t more) {
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
    char *place = buffer->data + buffer->size;
    buffer->size += more;
    return place;
}

static void buffer_add(Buffer *buffer, const void *data, size_t size) {
    char *place = buffer_extend(buffer, size);
    if (place && size) memcpy(place, data, size);
}

static void add_byte(Buffer *buffer, uint8_t value) { buffer_add(buffer, &value, sizeof value); }
static void add_int32(Buffer *buffer, int32_t value) { buffer_add(buffer, &value, sizeof value); }
static void add_int64(Buffer *buffer, int64_t value) { buffer_add(buffer, &value, sizeof value); }
static void add_double(Buffer *buffer, double value) { buffer_add(buffer, &value, sizeof value); }

/* ---- names: texts that repeat, each under a number ------------------------------------------------------------------------ */

typedef struct {
    Buffer text, ends; /* ends: int64 each, where the name's text ends */
    int32_t *slots;    /* number of the name, or -1 */
    size_t mask;
    int32_t count;
    int32_t next; /* the one that probably follows: rows name the same things in the same order */
} Names;

static uint64_t hash_of(const char *text, size_t size) {
    uint64_t hash = 14695981039346656037ULL;
    for (size_t i = 0; i < size; i++) hash = (hash ^ (uint8_t)text[i]) * 1099511628211ULL;
    return hash ^ (hash >> 29);
}

static const char *name_at(const Names *names, int32_t number, size_t *size) {
    const int64_t *ends = (const int64_t *)names->ends.data;
    int64_t start = number ? ends[number - 1] : 0;
    *size = (size_t)(ends[number] - start);
    return names->text.data + start;
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
        size_t slot = hash_of(text, size) & (room - 1);
        while (slots[slot] >= 0) slot = (slot + 1) & (room - 1);
        slots[slot] = number;
    }
    free(names->slots);
    names->slots = slots;
    names->mask = room - 1;
    return 0;
}

/* The number of a name, which is a new one when it has not been seen; -1 when memory has run out. */
static int32_t names_number(Names *names, const char *text, size_t size) {
    int32_t number = names->next < names->count ? names->next : 0;
    if (names->count && is_name(names, number, text, size)) {
        names->next = number + 1;
        return number;
    }
    if ((!names->slots || (size_t)names->count * 2 > names->mask) && names_grow(names) < 0) return -1;
    size_t slot = hash_of(text, size) & names->mask;
    for (; names->slots[slot] >= 0; slot = (slot + 1) & names->mask) {
        if (!is_name(names, names->slots[slot], text, size)) continue;
        names->next = names->slots[slot] + 1;
        return names->slots[slot];
    }
    buffer_add(&names->text, text, size);
    add_int64(&names->ends, (int64_t)names->text.size);
    if (*names->text.has_failed) return -1;
    return names->slots[slot] = names->count++;
}
