/* Statistics of groups of numbers: what `stats.summarize_groups` does. Small groups stand side by side in one register.

    describe(values, starts, into)    doubles, sorted by group; where each group begins (int64); six doubles for every group
    count_below(values, edges)        how many of the doubles are less than each of some others, as a list

`into` is filled with the counts of all groups, then their means, sample standard deviations, least, greatest and middle values. NaN
is no value, and what a group has too few values for is NaN. Both run without the interpreter's lock, so that several threads may,
each with an `into` of its own. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef SOURCE_DIGEST
#define SOURCE_DIGEST ""
#endif

enum {
    LANES = 4,
    MOST_BITS = 6,
    MOST = 1 << MOST_BITS, /* values of a small group */
    MOST_PAIRS = 543,
    FEW = 16,     /* values that are sorted one by one */
    BLOCK = 1024, /* values summed before the sum is added to that of others, so that it loses nothing to it */
    ROUNDS = 96,  /* of a search that halves what is left, nearly always; then it is sorted */
};

#if defined __x86_64__
#define WIDE __attribute__((target("avx2")))
#endif
#define INLINE inline __attribute__((always_inline))
#pragma GCC diagnostic ignored "-Wpsabi" /* how vectors are passed differs between processors; none is */

typedef struct {
    double *count, *mean, *std, *min, *max, *median; /* of each group */
} Columns;

typedef double Values __attribute__((vector_size(LANES * sizeof(double)))); /* one value of each lane's group */
typedef int64_t Mask __attribute__((vector_size(LANES * sizeof(int64_t))));  /* all bits, or none */

static INLINE Values all(double value) { return (Values){value, value, value, value}; }

static INLINE Values chosen(Mask mask, Values one, Values other) {
    return (Values)((mask & (Mask)one) | (~mask & (Mask)other));
}

static INLINE void in_order(Values *one, Values *other) {
    Values a = *one, b = *other;
    Mask is_less = a < b;
    *one = chosen(is_less, a, b);
    *other = chosen(is_less, b, a);
}

/* Which places are compared to sort so many values, a power of two: as many bits as the index says. */
typedef struct {
    int count;
    uint8_t one[MOST_PAIRS], other[MOST_PAIRS];
} Network;

static Network networks[MOST_BITS + 1];

/* Batcher's networks: what is compared does not depend on the values, so that all lanes are sorted at once. */
static void prepare_networks(void) {
    for (int bits = 0; bits <= MOST_BITS; bits++) {
        Network *network = &networks[bits];
        int room = 1 << bits;
        network->count = 0;
        for (int merged = 1; merged < room; merged *= 2)
            for (int apart = merged; apart; apart /= 2)
                for (int first = apart % merged; first + apart < room; first += 2 * apart)
                    for (int i = first; i < first + apart; i++) {
                        if (i / (2 * merged) != (i + apart) / (2 * merged)) continue;
                        network->one[network->count] = (uint8_t)i;
                        network->other[network->count++] = (uint8_t)(i + apart);
                    }
    }
}

static INLINE void sort(Values *values, const Network *network) {
    for (int i = 0; i < network->count; i++) in_order(&values[network->one[i]], &values[network->other[i]]);
}

/* The squares are those of the gaps to the mean, in a second pass: squares of the values would drown them. */
static INLINE void describe_lanes(Values *values, int bits, int lanes, const Columns *into, size_t group) {
    const int room = 1 << bits;
    const Values none = all(0), one = all(1), infinite = all(INFINITY);
    Values count = none, sum = none, squares = none, low = infinite, high = -infinite;
    for (int i = 0; i < room; i++) {
        Values value = values[i];
        Mask is_known = value == value;
        count += chosen(is_known, one, none);
        sum += chosen(is_known, value, none);
        low = chosen(value < low, value, low);
        high = chosen(value > high, value, high);
    }
    Values mean = chosen(low == high, low, sum / count); /* of equal values exactly theirs, so that their spread is none */
    for (int i = 0; i < room; i++) {
        Mask is_known = values[i] == values[i];
        Values gap = values[i] - mean;
        squares += chosen(is_known, gap * gap, none);
        values[i] = chosen(is_known, values[i], infinite);
    }
    sort(values, &networks[bits]);
    for (int l = 0; l < lanes; l++, group++) {
        int n = (int)count[l];
        into->count[group] = n;
        into->mean[group] = n ? mean[l] : NAN;
        into->std[group] = n > 1 ? sqrt(squares[l] / (n - 1)) : NAN;
        into->min[group] = n ? low[l] : NAN;
        into->max[group] = n ? high[l] : NAN;
        into->median[group] = n ? (values[(n - 1) / 2][l] + values[n / 2][l]) / 2 : NAN;
    }
}

/* A large group */

typedef struct {
    Values sum, low, high;
    Mask known; /* minus the count of each lane */
} Totals;

static INLINE Totals no_totals(void) { return (Totals){all(0), all(INFINITY), all(-INFINITY), (Mask){0}}; }

static INLINE void add_values(Totals *totals, const double *values) {
    Values value;
    memcpy(&value, values, sizeof value);
    Mask is_known = value == value;
    totals->known += is_known;
    totals->sum += chosen(is_known, value, all(0));
    totals->low = chosen(value < totals->low, value, totals->low);
    totals->high = chosen(value > totals->high, value, totals->high);
}

static INLINE double lanes_sum(Values values) { return (values[0] + values[1]) + (values[2] + values[3]); }

typedef struct {
    int64_t known;
    double sum, low, high;
} Whole;

static INLINE Whole total(const double *values, int64_t size) {
    Whole whole = {0, 0, INFINITY, -INFINITY};
    for (int64_t first = 0; first < size; first += BLOCK) {
        int64_t end = size - first < BLOCK ? size : first + BLOCK, i = first;
        Totals totals = no_totals();
        for (; i + LANES <= end; i += LANES) add_values(&totals, values + i);
        if (i < end) {
            double rest[LANES] = {NAN, NAN, NAN, NAN};
            memcpy(rest, values + i, (size_t)(end - i) * sizeof *rest);
            add_values(&totals, rest);
        }
        whole.sum += lanes_sum(totals.sum);
        for (int l = 0; l < LANES; l++) {
            whole.known -= totals.known[l];
            if (totals.low[l] < whole.low) whole.low = totals.low[l];
            if (totals.high[l] > whole.high) whole.high = totals.high[l];
        }
    }
    return whole;
}

static INLINE double squares_around(double mean, const double *values, int64_t size) {
    double squares = 0;
    for (int64_t first = 0; first < size; first += BLOCK) {
        int64_t end = size - first < BLOCK ? size : first + BLOCK, i = first;
        Values some = all(0);
        for (; i + LANES <= end; i += LANES) {
            Values value;
            memcpy(&value, values + i, sizeof value);
            Values gap = value - all(mean);
            some += chosen(value == value, gap * gap, all(0));
        }
        for (; i < end; i++)
            if (values[i] == values[i]) some[0] += (values[i] - mean) * (values[i] - mean);
        squares += lanes_sum(some);
    }
    return squares;
}

static int by_size(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static double middle_of_three(double a, double b, double c) {
    double low = a < b ? a : b, high = a < b ? b : a;
    return c < low ? low : c > high ? high : c;
}

/* A value near the middle of those there are: the middle of nine, three by three. */
static double some_middle(const double *values, int64_t size) {
    double found[3];
    for (int i = 0; i < 3; i++) {
        const double *at = values + size / 9 * (3 * i);
        found[i] = middle_of_three(at[0], at[size / 9], at[size / 9 * 2]);
    }
    return middle_of_three(found[0], found[1], found[2]);
}

/* Which value would stand at a place if all were sorted. None is NaN; `low` and `high` have room for all. What is copied where does
   not depend on a branch, which would be guessed wrongly for every other value. */
static double value_at(const double *values, int64_t size, int64_t place, double *low, double *high) {
    for (int rounds = 0; size > FEW && rounds < ROUNDS; rounds++) {
        double middle = some_middle(values, size);
        int64_t less = 0, more = 0;
        for (int64_t i = 0; i < size; i++) {
            double value = values[i];
            int is_less = value < middle;
            low[less] = value;
            high[more] = value;
            less += is_less;
            more += !is_less;
        }
        if (place < less) {
            values = low;
            size = less;
            continue;
        }
        place -= less;
        if (less) {
            values = high;
            size = more;
            continue;
        }
        /* It is the least of all, perhaps many times. All of them are in `high` now; the last one overwrote the first in `low`. */
        more = 0;
        for (int64_t i = 0; i < size; i++) {
            double value = high[i];
            high[more] = value;
            more += value > middle;
        }
        if (place < size - more) return middle;
        place -= size - more;
        values = high;
        size = more;
    }
    memmove(low, values, (size_t)size * sizeof *low);
    qsort(low, (size_t)size, sizeof *low, by_size);
    return low[place];
}

/* The least of the values that are greater than one of them, or that one, when it is there so often that it is at this place too. */
static INLINE double next_value(double low, const double *values, int64_t size, int64_t place) {
    Values least = all(INFINITY);
    Mask beyond = {0};
    int64_t i = 0, up_to_it = size;
    for (; i + LANES <= size; i += LANES) {
        Values value;
        memcpy(&value, values + i, sizeof value);
        Mask is_beyond = value > all(low);
        beyond += is_beyond;
        value = chosen(is_beyond, value, all(INFINITY));
        least = chosen(value < least, value, least);
    }
    double next = INFINITY;
    for (int l = 0; l < LANES; l++) {
        up_to_it += beyond[l];
        next = least[l] < next ? least[l] : next;
    }
    for (; i < size; i++) {
        up_to_it -= values[i] > low;
        next = values[i] > low && values[i] < next ? values[i] : next;
    }
    return up_to_it > place ? low : next;
}

static INLINE double middle_value(const double *values, int64_t size, double *room) {
    double low = value_at(values, size, (size - 1) / 2, room, room + size);
    return size % 2 ? low : (low + next_value(low, values, size, size / 2)) / 2;
}

/* -1 without memory. */
static INLINE int describe_large(const double *values, int64_t size, const Columns *into, size_t group) {
    Whole whole = total(values, size);
    int64_t known = whole.known;
    double mean = whole.low == whole.high ? whole.low : whole.sum / (double)known;
    into->count[group] = (double)known;
    into->mean[group] = known ? mean : NAN;
    into->std[group] = known > 1 ? sqrt(squares_around(mean, values, size) / (double)(known - 1)) : NAN;
    into->min[group] = known ? whole.low : NAN;
    into->max[group] = known ? whole.high : NAN;
    into->median[group] = known ? whole.low : NAN;
    if (!known || whole.low == whole.high) return 0;
    double *room = malloc((size_t)(known < size ? 3 : 2) * (size_t)size * sizeof *room);
    if (room == NULL) return -1;
    if (known < size) {
        double *only = room + 2 * size;
        int64_t kept = 0;
        for (int64_t i = 0; i < size; i++) {
            only[kept] = values[i];
            kept += values[i] == values[i];
        }
        values = only;
    }
    into->median[group] = middle_value(values, known, room);
    free(room);
    return 0;
}

typedef enum { FINE, OUT_OF_ORDER, NO_MEMORY } Outcome;

static INLINE void describe_small(
    const double *values, const int64_t *begins, const int64_t *sizes, int used, const Columns *into, size_t first
) {
    Values lanes[MOST];
    int bits = 0;
    for (int l = 0; l < used; l++)
        while (1 << bits < sizes[l]) bits++;
    for (int l = 0; l < LANES; l++)
        for (int i = 0; i < 1 << bits; i++) lanes[i][l] = l < used && i < sizes[l] ? values[begins[l] + i] : NAN;
    describe_lanes(lanes, bits, used, into, first);
}

static INLINE Outcome describe_all(
    const double *values, int64_t count, const int64_t *starts, size_t groups, const Columns *into
) {
    for (size_t first = 0; first < groups; first += LANES) {
        int used = groups - first < LANES ? (int)(groups - first) : LANES, are_small = 1;
        int64_t begins[LANES], sizes[LANES];
        for (int l = 0; l < used; l++) {
            size_t group = first + (size_t)l;
            int64_t end = group + 1 < groups ? starts[group + 1] : count;
            begins[l] = starts[group];
            if (begins[l] < 0 || end < begins[l] || end > count) return OUT_OF_ORDER;
            sizes[l] = end - begins[l];
            are_small &= sizes[l] <= MOST;
        }
        if (are_small) {
            describe_small(values, begins, sizes, used, into, first);
            continue;
        }
        for (int l = 0; l < used; l++) {
            size_t group = first + (size_t)l;
            if (sizes[l] <= MOST) {
                describe_small(values, begins + l, sizes + l, 1, into, group);
            } else if (describe_large(values + begins[l], sizes[l], into, group) < 0) {
                return NO_MEMORY;
            }
        }
    }
    return FINE;
}

static INLINE int64_t below(double edge, const double *values, int64_t size) {
    Mask less = {0};
    int64_t i = 0, found = 0;
    for (; i + LANES <= size; i += LANES) {
        Values value;
        memcpy(&value, values + i, sizeof value);
        less += value < all(edge);
    }
    for (; i < size; i++) found += values[i] < edge;
    return found - (less[0] + less[1] + less[2] + less[3]);
}

typedef struct {
    const double *values;
    int64_t count;
} Numbers;

static Outcome describe_plainly(Numbers given, const int64_t *starts, size_t groups, const Columns *into) {
    return describe_all(given.values, given.count, starts, groups, into);
}

static int64_t below_plainly(double edge, Numbers given) { return below(edge, given.values, given.count); }

#ifdef WIDE
WIDE static Outcome describe_widely(Numbers given, const int64_t *starts, size_t groups, const Columns *into) {
    return describe_all(given.values, given.count, starts, groups, into);
}

WIDE static int64_t below_widely(double edge, Numbers given) { return below(edge, given.values, given.count); }
#endif

static int is_wide(void) {
#ifdef WIDE
    return __builtin_cpu_supports("avx2");
#else
    return 0;
#endif
}

#ifndef WIDE
#define describe_widely describe_plainly
#define below_widely below_plainly
#endif

static Numbers numbers_of(const Py_buffer *given) {
    return (Numbers){given->buf, given->len / (int64_t)sizeof(double)};
}

static PyObject *describe(PyObject *module, PyObject *arguments) {
    Py_buffer values, starts, into;
    Outcome outcome = OUT_OF_ORDER;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y*y*w*", &values, &starts, &into)) return NULL;
    size_t groups = (size_t)starts.len / sizeof(int64_t);
    if ((size_t)into.len == 6 * groups * sizeof(double)) {
        double *made = into.buf;
        Columns columns = {made, made + groups, made + 2 * groups, made + 3 * groups, made + 4 * groups, made + 5 * groups};
        Py_BEGIN_ALLOW_THREADS
        outcome = (is_wide() ? describe_widely : describe_plainly)(numbers_of(&values), starts.buf, groups, &columns);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&values);
    PyBuffer_Release(&starts);
    PyBuffer_Release(&into);
    if (outcome == FINE) Py_RETURN_NONE;
    if (outcome == NO_MEMORY) return PyErr_NoMemory();
    PyErr_SetString(PyExc_ValueError, "groups do not follow each other, or there is no room for six numbers of each");
    return NULL;
}

static PyObject *count_below(PyObject *module, PyObject *arguments) {
    Py_buffer values, edges;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y*y*", &values, &edges)) return NULL;
    Numbers given = numbers_of(&values), wanted = numbers_of(&edges);
    PyObject *found = PyList_New(wanted.count);
    for (int64_t i = 0; found != NULL && i < wanted.count; i++) {
        int64_t count;
        Py_BEGIN_ALLOW_THREADS
        count = (is_wide() ? below_widely : below_plainly)(wanted.values[i], given);
        Py_END_ALLOW_THREADS
        PyObject *number = PyLong_FromLongLong(count);
        if (number == NULL) Py_CLEAR(found);
        else if (PyList_SetItem(found, i, number) < 0) Py_CLEAR(found);
    }
    PyBuffer_Release(&values);
    PyBuffer_Release(&edges);
    return found;
}

static PyMethodDef functions[] = {
    {"describe", describe, METH_VARARGS, "describe(values, starts, into): statistics of every group"},
    {"count_below", count_below, METH_VARARGS, "count_below(values, edges): how many are less than each edge"},
    {NULL, NULL, 0, NULL},
};

static int prepare(PyObject *module) {
    prepare_networks();
    return PyModule_AddStringConstant(module, "SOURCE_DIGEST", SOURCE_DIGEST);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0, NULL}};
static PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT, .m_name = "_groups", .m_doc = "Statistics of groups of numbers.", .m_methods = functions,
    .m_slots = slots};

PyMODINIT_FUNC PyInit__groups(void) { return PyModuleDef_Init(&module); }
