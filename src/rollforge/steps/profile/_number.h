/* Numbers as JSON, for `_weave.c`: a double as the shortest decimal that is read as the same double, spelled as msgspec does.
 *
 * The digits are found by Giulietti's method (The Schubfach way to render doubles, 2020): the decimals nearest to a double are
 * looked for between the bounds of what rounds to it, all of them times a power of ten that is kept to 128 bits.
 */

#pragma once

#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "eight digits are written as one word, whose first byte is its least"
#endif

enum { MOST_NUMBER = 32, ROOM = 64 }; /* bytes that a number takes, and that may be written over while it is spelled */

typedef unsigned __int128 Wide;

/* Powers of ten: the leading 128 bits of each, rounded up. */

enum { LEAST_POWER = -292, MOST_POWER = 324, LIMBS = 48, LIMB_BITS = 32 };

static Wide ten_to[MOST_POWER - LEAST_POWER + 1];

/* The leading 128 bits of a number of `LIMBS` limbs, least first; rounded up if anything was cut off, or `is_cut` already. */
static Wide leading_bits(const uint32_t *limbs, int is_cut) {
    int top = LIMBS - 1;
    while (limbs[top] == 0) top--;
    int unused = __builtin_clz(limbs[top]);
    Wide bits = 0;
    for (int i = top; i > top - 4; i--) bits = bits << LIMB_BITS | (i >= 0 ? limbs[i] : 0);
    if (unused) {
        uint32_t next = top >= 4 ? limbs[top - 4] : 0;
        bits = bits << unused | next >> (LIMB_BITS - unused);
        is_cut |= (uint32_t)(next << unused) != 0;
    } else if (top >= 4) {
        is_cut |= limbs[top - 4] != 0;
    }
    for (int i = top - 5; i >= 0; i--) is_cut |= limbs[i] != 0;
    return bits + (is_cut ? 1 : 0);
}

/* Called once, before any number is spelled. Nothing is lost on the way: a product has room, and a quotient of a quotient is that of
 * the product. */
static void prepare_numbers(void) {
    uint32_t limbs[LIMBS] = {1};
    for (int power = 0; power <= MOST_POWER; power++) {
        ten_to[power - LEAST_POWER] = leading_bits(limbs, 0);
        uint64_t carry = 0;
        for (int i = 0; i < LIMBS; i++) {
            carry += (uint64_t)limbs[i] * 10;
            limbs[i] = (uint32_t)carry;
            carry >>= LIMB_BITS;
        }
    }
    memset(limbs, 0, sizeof limbs);
    limbs[LIMBS - 1] = 1;
    for (int power = -1; power >= LEAST_POWER; power--) {
        uint64_t rest = 0;
        for (int i = LIMBS - 1; i >= 0; i--) {
            rest = rest << LIMB_BITS | limbs[i];
            limbs[i] = (uint32_t)(rest / 10);
            rest %= 10;
        }
        ten_to[power - LEAST_POWER] = leading_bits(limbs, 1);
    }
}

/* Digits */

typedef struct {
    uint64_t digits;
    int power; /* of ten, that they are multiplied by */
} Decimal;

/* The product's upper 64 of 192 bits, the last of them set when anything is below. */
static uint64_t scaled(Wide power, uint64_t number) {
    Wide low = (Wide)(uint64_t)power * number >> 64;
    Wide high = (Wide)(uint64_t)(power >> 64) * number + low;
    return (uint64_t)(high >> 64) | ((uint64_t)high > 1);
}

/* Of mantissa × 2^exponent. */
static Decimal shortest(uint64_t mantissa, int exponent, int is_lower_half) {
    /* Logarithms as fractions, exact for all exponents there are; just above a power of two numbers lie twice as dense below. */
    int power = (exponent * 1262611 - (is_lower_half ? 524031 : 0)) >> 22;
    int shift = exponent + ((-power * 1741647) >> 19) + 1;
    Wide ten = ten_to[-power - LEAST_POWER];
    uint64_t is_odd = mantissa & 1;
    uint64_t lower = scaled(ten, (4 * mantissa - (is_lower_half ? 1 : 2)) << shift) + is_odd;
    uint64_t exact = scaled(ten, 4 * mantissa << shift);
    uint64_t upper = scaled(ten, (4 * mantissa + 2) << shift) - is_odd;
    uint64_t digits = exact / 4;
    if (digits >= 10) {
        uint64_t fewer = digits / 10;
        int is_below = lower <= 40 * fewer, is_above = 40 * fewer + 40 <= upper;
        if (is_below != is_above) return (Decimal){fewer + (is_above ? 1 : 0), power + 1};
    }
    int is_below = lower <= 4 * digits, is_above = 4 * digits + 4 <= upper;
    if (is_below != is_above) return (Decimal){digits + (is_above ? 1 : 0), power};
    uint64_t middle = 4 * digits + 2;
    int is_up = exact > middle || (exact == middle && (digits & 1));
    return (Decimal){digits + (is_up ? 1 : 0), power};
}

/* Spelling: each is given `ROOM` bytes and returns how many of them count */

/* Eight digits as the eight bytes of a word, the first in the lowest. */
static uint64_t spread(uint64_t number) {
    uint64_t fours = number / 10000 | number % 10000 << 32;
    uint64_t hundreds = (fours * 10486 >> 20) & 0x7f0000007f; /* of each four, by a fraction just above 1/100 */
    uint64_t pairs = hundreds | (fours - hundreds * 100) << 16;
    uint64_t tens = (pairs * 103 >> 10) & 0x000f000f000f000f;
    return tens | (pairs - tens * 10) << 8;
}

static const uint64_t EIGHT = 100000000, SIXTEEN = 10000000000000000; /* 1 and so many zeros */

static const uint64_t TENS[] = {
    1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000, 1000000000, 10000000000, 100000000000, 1000000000000,
    10000000000000, 100000000000000, 1000000000000000, 10000000000000000,
};

/* Eight digits, from `spread`, as text. */
static void put_digits(char *at, uint64_t digits) {
    digits |= 0x3030303030303030;
    memcpy(at, &digits, sizeof digits);
}

/* Sixteen digits with the zeros before them; without those behind, there are as many as returned. */
static int put_fraction(char *at, uint64_t number) {
    uint64_t high = spread(number / EIGHT), low = spread(number % EIGHT);
    put_digits(at, high);
    put_digits(at + 8, low);
    if (low) return 16 - __builtin_clzll(low) / 8;
    return high ? 8 - __builtin_clzll(high) / 8 : 0;
}

static int spell_natural(char *at, uint64_t number) {
    if (number >= EIGHT) {
        int before = spell_natural(at, number / EIGHT);
        put_digits(at + before, spread(number % EIGHT));
        return before + 8;
    }
    uint64_t digits = spread(number);
    int zeros = digits ? __builtin_ctzll(digits) / 8 : 7;
    put_digits(at, digits >> 8 * zeros);
    return 8 - zeros;
}

static int spell_whole(char *at, int64_t number) {
    if (number >= 0) return spell_natural(at, (uint64_t)number);
    *at = '-';
    return 1 + spell_natural(at + 1, 0 - (uint64_t)number);
}

/* The digits with a point among them or zeros before them; with an exponent where that is very large or very small. Whole numbers
 * that need none are spelled elsewhere. */
static int spell_decimal(char *at, Decimal decimal) {
    while (decimal.digits < SIXTEEN) { /* nearly all have seventeen digits, or one less */
        decimal.digits *= 10;
        decimal.power--;
    }
    int point = 17 + decimal.power; /* digits before it */
    char first = (char)('0' + decimal.digits / SIXTEEN);
    if (point > 16 || point < -4) {
        at[0] = first;
        at[1] = '.';
        int count = put_fraction(at + 2, decimal.digits % SIXTEEN);
        int size = count ? 2 + count : 1;
        at[size] = 'e';
        return size + 1 + spell_whole(at + size + 1, point - 1);
    }
    if (point <= 0) {
        memcpy(at, "0.0000", 6);
        at[2 - point] = first;
        return 3 - point + put_fraction(at + 3 - point, decimal.digits % SIXTEEN);
    }
    uint64_t one = TENS[17 - point];
    int before = spell_natural(at, decimal.digits / one);
    at[before] = '.';
    return before + 1 + put_fraction(at + before + 1, decimal.digits % one * TENS[point - 1]);
}

/* A finite number; 0 bytes for any other. */
static int spell_double(char *at, double number) {
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    uint64_t fraction = bits & ((1ULL << 52) - 1);
    int biased = (int)(bits >> 52 & 2047);
    if (biased == 2047) return 0;
    int sign = (int)(bits >> 63);
    at[0] = '-';
    at += sign;
    double size = number < 0 ? -number : number;
    if (size < 1e16 && size == (double)(int64_t)size) {
        int count = spell_natural(at, (uint64_t)size);
        memcpy(at + count, ".0", 2);
        return sign + count + 2;
    }
    Decimal decimal = biased ? shortest(fraction | 1ULL << 52, biased - 1075, fraction == 0 && biased > 1)
                             : shortest(fraction, -1074, 0);
    return sign + spell_decimal(at, decimal);
}
