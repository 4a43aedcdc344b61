/* Strings of JSON, for `_json.h`: most of a line is inside of them, so that how fast they are read is how fast lines are read. Where the
processor compares 16 bytes at once, a text with escapes or letters beyond ASCII is read 64 bytes at a time, a bit for each;
short ones, the ends of lines and other processors take the plain way, which says what is valid. */

#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { TAKEN = 0, LEFT = -1 }; /* what every reading function returns */

typedef struct {
    const char *at, *end;
    int depth;
} Cursor;

typedef struct {
    const char *text; /* between the quotes, as it is escaped; NULL: there was none */
    size_t size;
    size_t characters; /* when not is_respelled */
    int has_escapes;
    int is_respelled; /* has an escape that equal texts may spell otherwise: \u or \/ */
} String;

/* The bytes of one character of more than a byte; 0 when it is not valid UTF-8. */
static size_t utf8_size(const uint8_t *at, const uint8_t *end) {
    size_t size = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
    if (at[0] < 0xc2 || at[0] > 0xf4 || (size_t)(end - at) < size) return 0;
    for (size_t i = 1; i < size; i++)
        if ((at[i] & 0xc0) != 0x80) return 0;
    if ((at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f)) return 0;
    if ((at[0] == 0xf0 && at[1] < 0x90) || (at[0] == 0xf4 && at[1] > 0x8f)) return 0;
    return size;
}

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

static int is_escape(char after) {
    switch (after) {
    case '"': case '\\': case '/': case 'b': case 'f': case 'n': case 'r': case 't': case 'u': return 1;
    default: return 0;
    }
}

/* The next byte that is not plain text: a quote, a backslash, a control character or a part of a longer character. */
static const char *next_special(const char *at, const char *end) {
#ifdef __SSE2__
    const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\'), space = _mm_set1_epi8(' ');
    for (; end - at >= 16; at += 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)at);
        __m128i special = _mm_or_si128(_mm_cmpeq_epi8(bytes, quote), _mm_cmpeq_epi8(bytes, backslash));
        int mask = _mm_movemask_epi8(_mm_or_si128(special, _mm_cmplt_epi8(bytes, space))); /* >= 0x80 is negative */
        if (mask) return at + __builtin_ctz((unsigned)mask);
    }
#endif
    for (; at < end; at++)
        if (*at == '"' || *at == '\\' || (signed char)*at < ' ') break;
    return at;
}

/* The escape that begins there; its size, or 0 when it is none. */
static size_t read_escape(const char *at, const char *end, String *found) {
    if (end - at < 2 || !is_escape(at[1])) return 0;
    found->has_escapes = 1;
    found->is_respelled |= at[1] == 'u' || at[1] == '/';
    if (at[1] != 'u') return 2;
    return end - at < 6 || hex_value(at + 2) < 0 ? 0 : 6;
}

#ifdef __SSE2__

enum { BLOCK = 64 };

static uint64_t bits_below(unsigned place) { return place < BLOCK ? (1ULL << place) - 1 : ~0ULL; }

static unsigned first_bit(uint64_t bits) { return bits ? (unsigned)__builtin_ctzll(bits) : BLOCK; }

static unsigned count_bits(uint64_t bits) {
    bits -= bits >> 1 & 0x5555555555555555ULL;
    bits = (bits & 0x3333333333333333ULL) + (bits >> 2 & 0x3333333333333333ULL);
    return (unsigned)(((bits + (bits >> 4)) & 0x0f0f0f0f0f0f0f0fULL) * 0x0101010101010101ULL >> 56);
}

static uint64_t bits_of(__m128i are, int quarter) { return (uint64_t)(unsigned)_mm_movemask_epi8(are) << quarter * 16; }

typedef struct {
    uint64_t quotes, backslashes, controls, high; /* high: parts of longer characters */
} Block;

static Block block_at(const char *at) {
    const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\'), space = _mm_set1_epi8(' ');
    Block block = {0};
    for (int i = 0; i < BLOCK / 16; i++) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)at + i);
        block.quotes |= bits_of(_mm_cmpeq_epi8(bytes, quote), i);
        block.backslashes |= bits_of(_mm_cmpeq_epi8(bytes, backslash), i);
        block.controls |= bits_of(_mm_cmplt_epi8(bytes, space), i); /* and those that are high, which count as negative */
        block.high |= bits_of(bytes, i);
    }
    block.controls &= ~block.high;
    return block;
}

/* Whether the longer characters among the first `size` bytes are valid UTF-8. At the end of the block one may be cut off: `size` is made
less then. `beyond` grows by their bytes after the first. */
static int check_utf8(const char *at, const char *end, uint64_t high, unsigned *size, size_t *beyond) {
    uint64_t follow = 0, of_three = 0, of_four = 0, doubtful = 0;
    for (int i = 0; i < BLOCK / 16; i++) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)at + i);
        follow |= bits_of(_mm_cmplt_epi8(bytes, _mm_set1_epi8((char)0xc0)), i);
        of_three |= bits_of(_mm_cmpgt_epi8(bytes, _mm_set1_epi8((char)0xdf)), i);
        of_four |= bits_of(_mm_cmpgt_epi8(bytes, _mm_set1_epi8((char)0xef)), i);
        __m128i is_overlong = _mm_cmpeq_epi8(_mm_and_si128(bytes, _mm_set1_epi8((char)0xfe)), _mm_set1_epi8((char)0xc0));
        __m128i is_edge = _mm_or_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8((char)0xe0)),
                                       _mm_cmpeq_epi8(bytes, _mm_set1_epi8((char)0xed)));
        doubtful |= bits_of(_mm_or_si128(is_overlong, is_edge), i);
    }
    of_three &= high; /* three or four */
    of_four &= high;
    uint64_t first = high & ~follow;
    uint64_t cut_off = (first & 1ULL << 63) | (of_three & 1ULL << 62) | (of_four & 1ULL << 61);
    if (*size == BLOCK) *size = first_bit(cut_off);
    uint64_t expected = first << 1 | of_three << 2 | of_four << 3;
    if ((expected ^ follow) & (bits_below(*size) | (*size < BLOCK ? 1ULL << *size : 0))) return LEFT;
    for (uint64_t left = (doubtful | of_four) & bits_below(*size); left; left &= left - 1)
        if (!utf8_size((const uint8_t *)at + first_bit(left), (const uint8_t *)end)) return LEFT;
    *beyond += count_bits(follow & bits_below(*size));
    return TAKEN;
}

/* Goes on inside of a string by whole blocks, to its closing quote or near the end of the text; NULL when it is not valid. */
static const char *read_blocks(const char *at, const char *end, String *found, size_t *beyond) {
    while (end - at > BLOCK) {
        Block block = block_at(at);
        unsigned size = BLOCK, is_split = 0;
        unsigned closing = first_bit(block.quotes), escape = first_bit(block.backslashes);
        while (escape < closing) {
            if (!read_escape(at + escape, end, found)) return NULL;
            uint64_t both = 3ULL << escape;
            is_split = escape == BLOCK - 1; /* what is escaped stands in the next block */
            ++*beyond;
            closing = first_bit(block.quotes &= ~both);
            escape = first_bit(block.backslashes &= ~both);
        }
        if (closing < BLOCK) size = closing;
        if (block.controls & bits_below(size)) return NULL;
        if ((block.high & bits_below(size)) && check_utf8(at, end, block.high, &size, beyond) < 0) return NULL;
        if (closing < BLOCK) return at + closing;
        at += size == BLOCK ? size + is_split : size;
    }
    return at;
}

#endif

/* A string; the cursor stands at its opening quote. */
static int read_string(Cursor *c, String *found) {
    const char *start = ++c->at, *at = start;
    size_t beyond = 0; /* bytes that are not a character of their own */
    found->has_escapes = found->is_respelled = 0;
    for (;;) {
        at = next_special(at, c->end);
        if (at >= c->end) return LEFT;
        if (*at == '"') break;
#ifdef __SSE2__
        if (c->end - at > BLOCK) {
            at = read_blocks(at, c->end, found, &beyond);
            if (!at) return LEFT;
            continue;
        }
#endif
        int is_escaped = *at == '\\';
        size_t size = is_escaped ? read_escape(at, c->end, found) : utf8_size((const uint8_t *)at, (const uint8_t *)c->end);
        if (!size) return LEFT; /* a control character is no UTF-8 of several bytes either */
        at += size;
        beyond += is_escaped ? 1 : size - 1;
    }
    found->text = start;
    found->size = (size_t)(at - start);
    found->characters = found->size - beyond;
    c->at = at + 1;
    return TAKEN;
}
