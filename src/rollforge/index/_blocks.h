/* The inside of long strings, 64 bytes at a time with AVX2, where the processor has it.

Worth a quarter of the pass over the text (decision 0008). `read_string` is correct without it and decides everything unusual:
this code only steps over plain text, the escapes \\n, \\" and \\\\, and valid multi-byte characters. */

#pragma once

#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,popcnt")))

enum { BLOCK = 64, HALF = 32 };

static int has_avx2; /* this processor, not the one that compiled the module */

__attribute__((constructor)) static void find_avx2(void) {
    __builtin_cpu_init();
    has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt");
}

static uint64_t bits_below(unsigned bit) { return bit < BLOCK ? (1ULL << bit) - 1 : ~0ULL; }

static unsigned first_bit(uint64_t bits) { return bits ? (unsigned)__builtin_ctzll(bits) : BLOCK; }

AVX2 static inline __m256i half_at(const char *at, int half) { return _mm256_loadu_si256((const __m256i *)(const void *)at + half); }

/* One bit per byte: its highest bit. */
AVX2 static inline uint64_t bits_of(__m256i low, __m256i high) {
    return (uint32_t)_mm256_movemask_epi8(low) | (uint64_t)(uint32_t)_mm256_movemask_epi8(high) << HALF;
}

AVX2 static inline uint64_t bits_equal(__m256i low, __m256i high, char to) {
    const __m256i bytes = _mm256_set1_epi8(to);
    return bits_of(_mm256_cmpeq_epi8(low, bytes), _mm256_cmpeq_epi8(high, bytes));
}

/* Which bytes are at least this, unsigned. */
AVX2 static inline uint64_t bits_from(__m256i low, __m256i high, uint8_t least) {
    const __m256i bytes = _mm256_set1_epi8((char)least);
    return bits_of(_mm256_cmpeq_epi8(_mm256_max_epu8(low, bytes), low), _mm256_cmpeq_epi8(_mm256_max_epu8(high, bytes), high));
}

/* Lead bytes after which not every continuation byte is valid: C0 and C1, E0, ED, F0 and above. */
AVX2 static inline __m256i are_restricted(__m256i bytes) {
    __m256i is_overlong = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, _mm256_set1_epi8((char)0xfe)), _mm256_set1_epi8((char)0xc0));
    __m256i is_edge = _mm256_or_si256(_mm256_cmpeq_epi8(bytes, _mm256_set1_epi8((char)0xe0)),
                                      _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8((char)0xed)));
    __m256i is_of_four = _mm256_cmpeq_epi8(_mm256_max_epu8(bytes, _mm256_set1_epi8((char)0xf0)), bytes);
    return _mm256_or_si256(_mm256_or_si256(is_overlong, is_edge), is_of_four);
}

/* Whether the multi-byte characters among the first `size` bytes are valid UTF-8. A character that the end of the block cuts off makes
`size` smaller. `beyond` grows by the number of continuation bytes. */
AVX2 static inline int check_utf8(const char *at, const char *end, uint64_t longer, unsigned *size, size_t *beyond) {
    __m256i low = half_at(at, 0), high = half_at(at, 1);
    __m256i low_edges = are_restricted(low), high_edges = are_restricted(high), edges = _mm256_or_si256(low_edges, high_edges);
    uint64_t lead = bits_from(low, high, 0xc0), of_three = bits_from(low, high, 0xe0), of_four = 0, restricted = 0;
    if (!_mm256_testz_si256(edges, edges)) {
        restricted = bits_of(low_edges, high_edges);
        of_four = bits_from(low, high, 0xf0);
    }
    if (*size == BLOCK) *size = first_bit((lead & 1ULL << 63) | (of_three & 1ULL << 62) | (of_four & 1ULL << 61));
    uint64_t continuation = longer & ~lead, expected = lead << 1 | of_three << 2 | of_four << 3;
    if ((expected ^ continuation) & (bits_below(*size) | (*size < BLOCK ? 1ULL << *size : 0))) return LEFT;
    for (restricted &= bits_below(*size); restricted; restricted &= restricted - 1)
        if (!utf8_size((const uint8_t *)at + first_bit(restricted), (const uint8_t *)end)) return LEFT;
    *beyond += (size_t)__builtin_popcountll(continuation & bits_below(*size));
    return TAKEN;
}

/* Of the backslashes in a block that does not begin inside an escape, those that begin one: in each run the first, the third, ... */
static inline uint64_t escaping(uint64_t backslashes) {
    const uint64_t even = 0x5555555555555555ULL;
    uint64_t starts = backslashes & ~(backslashes << 1);
    uint64_t even_runs = backslashes & ~(backslashes + (starts & even)); /* adding carries through a run and clears it */
    return (even_runs & even) | (backslashes & ~even_runs & ~even);
}

/* Steps through a string by whole blocks. Stops at the closing quote, at an unusual escape, or near the end of the text; NULL when the
string is invalid. */
AVX2 static const char *read_blocks(const char *at, const char *end, int *has_escapes, size_t *beyond) {
    while (end - at > BLOCK) {
        __m256i low = half_at(at, 0), high = half_at(at, 1);
        uint64_t backslashes = bits_equal(low, high, '\\'), quotes = bits_equal(low, high, '"');
        uint64_t usual = backslashes | quotes | bits_equal(low, high, 'n'); /* what usual escapes escape */
        uint64_t escapes = escaping(backslashes);
        /* The letter of an escape in the last byte is in the next block: such an escape counts as unusual too. */
        unsigned unusual = first_bit(escapes & ~(usual >> 1)), closing = first_bit(quotes & ~(escapes << 1));
        unsigned stop = closing < unusual ? closing : unusual, size = stop;
        uint64_t inside = bits_below(stop), longer = bits_of(low, high) & inside;
        if (~bits_from(low, high, ' ') & inside) return NULL; /* a control character */
        escapes &= inside;
        *has_escapes |= escapes != 0;
        *beyond += (size_t)__builtin_popcountll(escapes);
        if (longer && check_utf8(at, end, longer, &size, beyond) < 0) return NULL;
        if (stop < BLOCK) return at + stop;
        at += size;
    }
    return at;
}
