/* The hash of a text, for `_rows.c`: what `hashes.py` defines, without making a number as long as the text. */

#pragma once

#include <stdint.h>
#include <stddef.h>

#define PRIME 7244019458077122899ULL
#define FACTOR 0x2b7e151628aed2a6ULL

enum { WORD = 4, WORDS = 64, HASHED_TOGETHER = WORD * WORDS }; /* bytes; as many as are summed before they are divided */

static uint64_t powers[WORDS + 1]; /* of 2^32, modulo the prime */

static uint64_t multiplied(uint64_t one, uint64_t other) { return (uint64_t)((unsigned __int128)one * other % PRIME); }

/* Called once, before any hash. */
static void prepare_hash(void) {
    powers[0] = 1;
    for (int i = 0; i < WORDS; i++) powers[i + 1] = multiplied(powers[i], 1ULL << 32);
}

static uint64_t word_at(const uint8_t *at) {
    return (uint64_t)at[0] << 24 | (uint64_t)at[1] << 16 | (uint64_t)at[2] << 8 | at[3];
}

/* So many words as one number; it is far from overflowing. */
static unsigned __int128 summed(const uint8_t *at, size_t words) {
    unsigned __int128 sum = 0;
    for (size_t i = 0; i < words; i++, at += WORD) sum += (unsigned __int128)word_at(at) * powers[words - 1 - i];
    return sum;
}

static uint64_t hash_of_text(const char *text, size_t size) {
    const uint8_t *at = (const uint8_t *)text, *end = at + size;
    uint64_t hash = 0;
    for (size_t i = size % WORD; i; i--) hash = hash << 8 | *at++;
    size_t words = (size_t)(end - at) / WORD % WORDS;
    hash = (uint64_t)(((unsigned __int128)hash * powers[words] + summed(at, words)) % PRIME);
    for (at += words * WORD; at < end; at += HASHED_TOGETHER)
        hash = (uint64_t)(((unsigned __int128)hash * powers[WORDS] + summed(at, WORDS)) % PRIME);
    return multiplied(hash, FACTOR);
}
