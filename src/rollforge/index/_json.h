/* A strict JSON reader that walks through a text and calls back for each member. It builds nothing and reports no reason: whatever
is not certainly valid JSON in valid UTF-8 is LEFT to the Python reader. */

#pragma once

#include <locale.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __APPLE__
#include <xlocale.h>
#endif
#ifdef __SSE2__
#include <emmintrin.h>
#endif
#if defined __x86_64__ && defined __GNUC__
#define HAS_BLOCKS
#endif

enum { TAKEN = 0, LEFT = -1 }; /* what every reading function returns */

enum {
    MAX_DEPTH = 200,
    MAX_NUMBER = 300, /* bytes */
};

typedef struct {
    const char *at, *end;
    int depth;
} Cursor;

typedef struct {
    const char *text; /* between the quotes, still escaped; NULL: no string */
    size_t size;
    size_t characters; /* Unicode code points after unescaping */
    int has_escapes;
} String;

/* ---- strings ---- */

/* Bytes of the multi-byte character at `at`; 0 when it is not valid UTF-8. */
static size_t utf8_size(const uint8_t *at, const uint8_t *end) {
    size_t size = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
    if (at[0] < 0xc2 || at[0] > 0xf4 || (size_t)(end - at) < size) return 0;
    for (size_t i = 1; i < size; i++)
        if ((at[i] & 0xc0) != 0x80) return 0;
    if ((at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f)) return 0;
    if ((at[0] == 0xf0 && at[1] < 0x90) || (at[0] == 0xf4 && at[1] > 0x8f)) return 0;
    return size;
}

/* The value of four hexadecimal digits, or -1. */
static int hex_value(const char *at) {
    int value = 0;
    for (int i = 0; i < 4; i++) {
        int digit = at[i];
        if (digit >= '0' && digit <= '9') digit -= '0';
        else if (digit >= 'a' && digit <= 'f') digit -= 'a' - 10;
        else if (digit >= 'A' && digit <= 'F') digit -= 'A' - 10;
        else return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* Decodes the \u escape at `at`, with its second half if it is a surrogate pair. Returns its bytes; 0 for an invalid or lone half. */
static size_t unicode_escape(const char *at, const char *end, int *code) {
    if (end - at < 6 || (*code = hex_value(at + 2)) < 0) return 0;
    if (*code < 0xd800 || *code > 0xdfff) return 6;
    if (*code > 0xdbff || end - at < 12 || at[6] != '\\' || at[7] != 'u') return 0;
    int low = hex_value(at + 8);
    if (low < 0xdc00 || low > 0xdfff) return 0;
    *code = 0x10000 + ((*code - 0xd800) << 10) + (low - 0xdc00);
    return 12;
}

/* Bytes of the escape at `at`; 0 when it is invalid. */
static size_t escape_size(const char *at, const char *end) {
    int code;
    if (end - at < 2) return 0;
    switch (at[1]) {
    case '"': case '\\': case '/': case 'b': case 'f': case 'n': case 'r': case 't': return 2;
    case 'u': return unicode_escape(at, end, &code);
    default: return 0;
    }
}

/* Bytes of the escape or multi-byte character at `at`; 0 when it is invalid, as a control character is. */
static size_t special_size(const char *at, const char *end, String *found) {
    if (*at != '\\') return utf8_size((const uint8_t *)at, (const uint8_t *)end);
    found->has_escapes = 1;
    return escape_size(at, end);
}

/* The next quote, backslash, control character or byte of a multi-byte character. */
static const char *next_special(const char *at, const char *end) {
#ifdef __SSE2__
    const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\'), space = _mm_set1_epi8(' ');
    for (; end - at >= 16; at += 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)at);
        __m128i special = _mm_or_si128(_mm_cmpeq_epi8(bytes, quote), _mm_cmpeq_epi8(bytes, backslash));
        int mask = _mm_movemask_epi8(_mm_or_si128(special, _mm_cmplt_epi8(bytes, space))); /* signed: bytes from 0x80 on are negative */
        if (mask) return at + __builtin_ctz((unsigned)mask);
    }
#endif
    for (; at < end; at++)
        if (*at == '"' || *at == '\\' || (signed char)*at < ' ') break;
    return at;
}

#ifdef HAS_BLOCKS
#include "_blocks.h"
#endif

/* Reads a string; the cursor is at its opening quote. */
static int read_string(Cursor *c, String *found) {
    const char *start = ++c->at, *at = start;
    size_t beyond = 0; /* bytes minus characters */
    found->has_escapes = 0;
    for (;;) {
        at = next_special(at, c->end);
#ifdef HAS_BLOCKS
        if (c->end - at > BLOCK && *at != '"' && has_avx2) at = read_blocks(at, c->end, &found->has_escapes, &beyond);
        if (!at) return LEFT;
#endif
        if (at >= c->end) return LEFT;
        if (*at == '"') break;
        size_t size = (signed char)*at < ' ' || *at == '\\' ? special_size(at, c->end, found) : 1;
        if (!size) return LEFT;
        at += size;
        beyond += size - 1;
    }
    found->text = start;
    found->size = (size_t)(at - start);
    found->characters = found->size - beyond;
    c->at = at + 1;
    return TAKEN;
}

/* ---- numbers and words ---- */

static void skip_space(Cursor *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\r')) c->at++;
}

static int is_digit(const Cursor *c) { return c->at < c->end && *c->at >= '0' && *c->at <= '9'; }

static locale_t plain_locale; /* the C locale: the decimal separator is a point whatever the process has set */

/* Reads a number; the cursor is at its first character. */
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
        /* Both operands are exact doubles, so one multiplication or division rounds correctly. */
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

/* ---- arrays and objects ---- */

/* Reads the value of a member, or an element of an array (no key); the cursor is at its first character. */
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

/* A string without escapes, or null (then `text` is NULL). */
static int read_plain(Cursor *c, String *found) {
    if (*c->at == '"') return read_string(c, found) < 0 || found->has_escapes ? LEFT : TAKEN;
    found->text = NULL;
    return read_word(c, "null");
}

/* A number, or NaN for null. */
static int read_float(Cursor *c, double *value) {
    *value = NAN;
    return *c->at == 'n' ? read_word(c, "null") : read_number(c, value);
}

static int is_text(const String *string, const char *text) {
    return string->text && string->size == strlen(text) && memcmp(string->text, text, string->size) == 0;
}

/* Marks a key as seen; LEFT the second time, because the last of two equal keys counts and the first was already used. */
static int see(unsigned *seen, unsigned key) {
    if (*seen & (1u << key)) return LEFT;
    *seen |= 1u << key;
    return TAKEN;
}
