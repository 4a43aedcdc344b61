/* Strings of JSON, for `_json.h`: most of a line is inside of them, so that how fast they are read is how fast lines are read. Where the
processor compares 32 bytes at once, a text with escapes or letters beyond ASCII is read 64 bytes at a time, a bit for each;
short ones, the ends of lines and other processors take the plain way, which says what is valid. */

#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif
#if defined __x86_64__ && defined __GNUC__
#define READS_BLOCKS
#define WIDE __attribute__((target("avx2,popcnt")))
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

#ifdef READS_BLOCKS

enum { BLOCK = 64, HALF = 32 };

static int has_wide_registers; /* this processor, not the one that it was compiled on */

__attribute__((constructor)) static void find_registers(void) {
    __builtin_cpu_init();
    has_wide_registers = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt");
}

static uint64_t bits_below(unsigned place) { return place < BLOCK ? (1ULL << place) - 1 : ~0ULL; }

static unsigned first_bit(uint64_t bits) { return bits ? (unsigned)__builtin_ctzll(bits) : BLOCK; }

WIDE static inline __m256i half_at(const char *at, int half) { return _mm256_loadu_si256((const __m256i *)at + half); }

WIDE static inline uint64_t bits_of(__m256i low, __m256i high) {
    return (uint32_t)_mm256_movemask_epi8(low) | (uint64_t)(uint32_t)_mm256_movemask_epi8(high) << HALF;
}

WIDE static inline uint64_t bits_equal(__m256i low, __m256i high, char to) {
    const __m256i bytes = _mm256_set1_epi8(to);
    return bits_of(_mm256_cmpeq_epi8(low, bytes), _mm256_cmpeq_epi8(high, bytes));
}

/* Which bytes, as numbers without a sign, are not less. */
WIDE static inline uint64_t bits_from(__m256i low, __m256i high, uint8_t least) {
    const __m256i bytes = _mm256_set1_epi8((char)least);
    return bits_of(_mm256_cmpeq_epi8(_mm256_max_epu8(low, bytes), low), _mm256_cmpeq_epi8(_mm256_max_epu8(high, bytes), high));
}

/* First bytes that not every following byte may stand behind: C0 and C1, E0, ED, F0 and beyond. */
WIDE static inline __m256i are_doubtful(__m256i bytes) {
    __m256i is_overlong = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, _mm256_set1_epi8((char)0xfe)), _mm256_set1_epi8((char)0xc0));
    __m256i is_edge = _mm256_or_si256(_mm256_cmpeq_epi8(bytes, _mm256_set1_epi8((char)0xe0)),
                                      _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8((char)0xed)));
    __m256i is_of_four = _mm256_cmpeq_epi8(_mm256_max_epu8(bytes, _mm256_set1_epi8((char)0xf0)), bytes);
    return _mm256_or_si256(_mm256_or_si256(is_overlong, is_edge), is_of_four);
}

/* Whether the bytes of longer characters among the first `size` are valid UTF-8. At the end of the block one may be cut off: `size` is
made less then. `beyond` grows by their bytes after the first. */
WIDE static inline int check_utf8(const char *at, const char *end, uint64_t longer, unsigned *size, size_t *beyond) {
    __m256i low = half_at(at, 0), high = half_at(at, 1);
    __m256i low_doubts = are_doubtful(low), high_doubts = are_doubtful(high), doubts = _mm256_or_si256(low_doubts, high_doubts);
    uint64_t first = bits_from(low, high, 0xc0), of_three = bits_from(low, high, 0xe0), of_four = 0, doubtful = 0;
    if (!_mm256_testz_si256(doubts, doubts)) {
        doubtful = bits_of(low_doubts, high_doubts);
        of_four = bits_from(low, high, 0xf0);
    }
    if (*size == BLOCK) *size = first_bit((first & 1ULL << 63) | (of_three & 1ULL << 62) | (of_four & 1ULL << 61));
    uint64_t follow = longer & ~first, expected = first << 1 | of_three << 2 | of_four << 3;
    if ((expected ^ follow) & (bits_below(*size) | (*size < BLOCK ? 1ULL << *size : 0))) return LEFT;
    for (doubtful &= bits_below(*size); doubtful; doubtful &= doubtful - 1)
        if (!utf8_size((const uint8_t *)at + first_bit(doubtful), (const uint8_t *)end)) return LEFT;
    *beyond += (size_t)__builtin_popcountll(follow & bits_below(*size));
    return TAKEN;
}

/* Of backslashes in a block that begins with none half read, those that escape: in each run of them the first, the third, ... */
static inline uint64_t escaping(uint64_t backslashes) {
    const uint64_t even = 0x5555555555555555ULL;
    uint64_t starts = backslashes & ~(backslashes << 1);
    uint64_t of_even_runs = backslashes & ~(backslashes + (starts & even)); /* adding carries through a run and empties it */
    return (of_even_runs & even) | (backslashes & ~of_even_runs & ~even);
}

/* Goes on inside of a string by whole blocks, to its closing quote or near the end of the text; NULL when it is not valid. */
WIDE static const char *read_blocks(const char *at, const char *end, String *found, size_t *beyond) {
    while (end - at > BLOCK) {
        __m256i low = half_at(at, 0), high = half_at(at, 1);
        uint64_t backslashes = bits_equal(low, high, '\\'), quotes = bits_equal(low, high, '"');
        uint64_t ordinary = backslashes | quotes | bits_equal(low, high, 'n'); /* what most escapes are of */
        uint64_t escapes = escaping(backslashes);
        unsigned closing = first_bit(quotes & ~(escapes << 1)), size = closing;
        uint64_t inside = bits_below(closing), longer = bits_of(low, high) & inside;
        if (~bits_from(low, high, ' ') & inside) return NULL; /* a control character */
        escapes &= inside;
        for (uint64_t left = escapes & ~(ordinary >> 1); left; left &= left - 1)
            if (!read_escape(at + first_bit(left), end, found)) return NULL;
        found->has_escapes |= escapes != 0;
        *beyond += (size_t)__builtin_popcountll(escapes);
        if (longer && check_utf8(at, end, longer, &size, beyond) < 0) return NULL;
        if (closing < BLOCK) return at + closing;
        at += size == BLOCK ? size + (escapes >> (BLOCK - 1)) : size; /* an escape may be split between two blocks */
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
#ifdef READS_BLOCKS
        if (c->end - at > BLOCK && has_wide_registers) {
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
