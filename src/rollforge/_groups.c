/* Statistics of many small groups of numbers: what `stats.summarize_groups` does, several groups side by side in one register.

    describe(values, starts, into)    doubles, sorted by group; where each group begins (int64); six doubles for every group

`into` is filled with the counts of all groups, then their means, sample standard deviations, least, greatest and middle values. NaN
is no value, and what a group has too few values for is NaN. A group has at most MOST values: larger ones numpy does as fast. It runs
without the interpreter's lock, so that several threads may, each with an `into` of its own. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stdint.h>

enum { LANES = 4, MOST_BITS = 6, MOST = 1 << MOST_BITS, MOST_PAIRS = 543 };

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

/* -1 when a group is too large, or they do not follow each other. */
static INLINE int describe_all(const double *values, int64_t count, const int64_t *starts, size_t groups, const Columns *into) {
    Values lanes[MOST];
    for (size_t first = 0; first < groups; first += LANES) {
        int used = groups - first < LANES ? (int)(groups - first) : LANES, bits = 0;
        int64_t begins[LANES], sizes[LANES] = {0};
        for (int l = 0; l < used; l++) {
            size_t group = first + (size_t)l;
            int64_t end = group + 1 < groups ? starts[group + 1] : count;
            begins[l] = starts[group];
            if (begins[l] < 0 || end < begins[l] || end > count || end - begins[l] > MOST) return -1;
            sizes[l] = end - begins[l];
            while (1 << bits < sizes[l]) bits++;
        }
        for (int l = 0; l < LANES; l++)
            for (int i = 0; i < 1 << bits; i++) lanes[i][l] = i < sizes[l] ? values[begins[l] + i] : NAN;
        describe_lanes(lanes, bits, used, into, first);
    }
    return 0;
}

static int describe_plainly(const double *values, int64_t count, const int64_t *starts, size_t groups, const Columns *into) {
    return describe_all(values, count, starts, groups, into);
}

#ifdef WIDE
WIDE static int describe_widely(const double *values, int64_t count, const int64_t *starts, size_t groups, const Columns *into) {
    return describe_all(values, count, starts, groups, into);
}
#endif

static int describe_somehow(const double *values, int64_t count, const int64_t *starts, size_t groups, double *into) {
    Columns columns = {into, into + groups, into + 2 * groups, into + 3 * groups, into + 4 * groups, into + 5 * groups};
#ifdef WIDE
    if (__builtin_cpu_supports("avx2")) return describe_widely(values, count, starts, groups, &columns);
#endif
    return describe_plainly(values, count, starts, groups, &columns);
}

static PyObject *describe(PyObject *module, PyObject *arguments) {
    Py_buffer values, starts, into;
    int outcome = -1;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y*y*w*", &values, &starts, &into)) return NULL;
    size_t groups = (size_t)starts.len / sizeof(int64_t);
    if ((size_t)into.len == 6 * groups * sizeof(double)) {
        Py_BEGIN_ALLOW_THREADS
        outcome = describe_somehow(values.buf, values.len / (int64_t)sizeof(double), starts.buf, groups, into.buf);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&values);
    PyBuffer_Release(&starts);
    PyBuffer_Release(&into);
    if (!outcome) Py_RETURN_NONE;
    PyErr_SetString(PyExc_ValueError, "a group is too large, groups do not follow each other, or there is no room for six numbers of each");
    return NULL;
}

static PyMethodDef functions[] = {
    {"describe", describe, METH_VARARGS, "describe(values, starts, into): statistics of every group"},
    {NULL, NULL, 0, NULL},
};

static int prepare(PyObject *module) {
    prepare_networks();
    return PyModule_AddIntConstant(module, "MOST", MOST);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0, NULL}};
static PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT, .m_name = "_groups", .m_doc = "Statistics of many small groups of numbers.", .m_methods = functions,
    .m_slots = slots};

PyMODINIT_FUNC PyInit__groups(void) { return PyModuleDef_Init(&module); }
