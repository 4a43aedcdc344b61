/* A strict reader of JSON for `_rows.c`: it walks through a text and hands out what it meets; it builds nothing. Whatever is not
certainly valid JSON and UTF-8 makes it say LEFT, without saying why. */

#pragma once

#include <locale.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __APPLE__
#include <xlocale.h>
#endif

#include "_string.h"

enum {
    MAX_DEPTH = 200,
    MAX_NUMBER = 300, /* bytes of a number */
};

static void skip_space(Cursor *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\r')) c->at++;
}

static int is_digit(const Cursor *c) { return c->at < c->end && *c->at >= '0' && *c->at <= '9'; }

static locale_t plain_locale; /* a point is a point, whatever the program's own locale says */

/* A number; the cursor stands at its first character. */
static int read_number(Cursor *c, double *value) {
    static const double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    const char *start = c->at;
    int is_negative = *c->at == '-', is_exact = 1;
    uint64_t digits = 0;
    long exponent = 0, after_point = 0;
    c->at += is_negative;
    if (!is_digit(c)) return LEFT;
    if (*c->at == '0' && c->at + 1 < c->end && c->at[1] >= '0' && c->at[1] <= '9') return LEFT;
    for (; is_digit(c); c->at++) {
        if (digits > (UINT64_MAX - 9) / 10) is_exact = 0;
        digits = digits * 10 + (uint64_t)(*c->at - '0');
    }
    if (c->at < c->end && *c->at == '.') {
        c->at++;
        if (!is_digit(c)) return LEFT;
        for (; is_digit(c); c->at++, after_point++) {
            if (digits > (UINT64_MAX - 9) / 10) is_exact = 0;
            digits = digits * 10 + (uint64_t)(*c->at - '0');
        }
    }
    if (c->at < c->end && (*c->at == 'e' || *c->at == 'E')) {
        c->at++;
        int is_small = c->at < c->end && *c->at == '-';
        if (c->at < c->end && (*c->at == '-' || *c->at == '+')) c->at++;
        if (!is_digit(c)) return LEFT;
        for (; is_digit(c); c->at++)
            if (exponent < 100000) exponent = exponent * 10 + (*c->at - '0');
        if (is_small) exponent = -exponent;
    }
    exponent -= after_point;
    if (is_exact && digits <= (1ULL << 53) && exponent >= -22 && exponent <= 22) {
        /* both are exact, so that one multiplication or division rounds right */
        double whole = (double)digits;
        *value = exponent < 0 ? whole / powers[-exponent] : whole * powers[exponent];
        if (is_negative) *value = -*value;
        return TAKEN;
    }
    char copy[MAX_NUMBER + 1];
    size_t size = (size_t)(c->at - start);
    if (size > MAX_NUMBER) return LEFT;
    memcpy(copy, start, size);
    copy[size] = 0;
    *value = strtod_l(copy, NULL, plain_locale);
    return isfinite(*value) ? TAKEN : LEFT;
}

static int read_word(Cursor *c, const char *word) {
    size_t size = strlen(word);
    if ((size_t)(c->end - c->at) < size || memcmp(c->at, word, size) != 0) return LEFT;
    c->at += size;
    return TAKEN;
}

/* Reads the value of a key, or an element of an array; the cursor stands at its first character. */
typedef int (*ReadMember)(void *context, const String *key, Cursor *c);

static int read_members(Cursor *c, char opening, ReadMember read, void *context) {
    char closing = opening == '{' ? '}' : ']';
    if (c->at >= c->end || *c->at != opening || ++c->depth > MAX_DEPTH) return LEFT;
    c->at++;
    skip_space(c);
    if (c->at < c->end && *c->at == closing) {
        c->at++;
        c->depth--;
        return TAKEN;
    }
    for (;;) {
        String key = {0};
        if (opening == '{') {
            if (c->at >= c->end || *c->at != '"' || read_string(c, &key) < 0) return LEFT;
            if (key.is_respelled) return LEFT; /* may be half a surrogate pair, which is no key */
            skip_space(c);
            if (c->at >= c->end || *c->at++ != ':') return LEFT;
            skip_space(c);
        }
        if (c->at >= c->end || read(context, &key, c) < 0) return LEFT;
        skip_space(c);
        if (c->at >= c->end) return LEFT;
        char next = *c->at++;
        if (next == closing) break;
        if (next != ',') return LEFT;
        skip_space(c);
    }
    c->depth--;
    return TAKEN;
}

static int read_object(Cursor *c, ReadMember read, void *context) { return read_members(c, '{', read, context); }
static int read_array(Cursor *c, ReadMember read, void *context) { return read_members(c, '[', read, context); }

static int skip_member(void *context, const String *key, Cursor *c) {
    String string;
    double number;
    (void)key;
    switch (*c->at) {
    case '"': return read_string(c, &string);
    case '{': return read_object(c, skip_member, context);
    case '[': return read_array(c, skip_member, context);
    case 't': return read_word(c, "true");
    case 'f': return read_word(c, "false");
    case 'n': return read_word(c, "null");
    default: return read_number(c, &number);
    }
}

static int skip_value(Cursor *c) { return skip_member(NULL, NULL, c); }

/* A text without escapes, or null; `text` is NULL then. */
static int read_plain(Cursor *c, String *found) {
    if (*c->at == '"') return read_string(c, found) < 0 || found->has_escapes ? LEFT : TAKEN;
    found->text = NULL;
    return read_word(c, "null");
}

/* A number or null, which is NaN. */
static int read_float(Cursor *c, double *value) {
    *value = NAN;
    return *c->at == 'n' ? read_word(c, "null") : read_number(c, value);
}

static int is_text(const String *string, const char *text) {
    return string->text && string->size == strlen(text) && memcmp(string->text, text, string->size) == 0;
}

/* Marks a key as seen; LEFT when it was seen before, because the last value counts and an earlier one was read. */
static int see(unsigned *seen, unsigned key) {
    if (*seen & (1u << key)) return LEFT;
    *seen |= 1u << key;
    return TAKEN;
}
