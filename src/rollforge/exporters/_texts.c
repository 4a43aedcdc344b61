/* This module does to long texts what Python cannot do in one pass: `texts.py` says what, and does the same where this is not compiled.

    shorten(lines)    JSON lines with every long string replaced by a short one, when all strings are valid JSON and UTF-8; else None
    on_one_line(line) the line with the characters escaped that some readers take for the end of a line
    is_spelled_once(string) whether equal texts are equal bytes
    flat_outline(text) the keys of a JSON object and the types behind them, when all its values are harmless; else None

It judges strings only: whether the rest is JSON, and of the right shape, is for the decoder to say, which then has little to read. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_string.h"

#ifndef SOURCE_DIGEST
#define SOURCE_DIGEST ""
#endif

enum {
    KEPT = 64, /* bytes of a string that is left as it is: roles, names, ids and most call arguments */
    MARK = 16, /* bytes of what stands for a longer one */
};

/* What stands for a long string. Strings that differ nearly always differ in it: it comes from their length and four places. */
static void write_mark(char *target, const String *string) {
    uint64_t mark = string->size;
    for (size_t i = 0; i < 4; i++) {
        uint64_t word;
        memcpy(&word, string->text + i * (string->size - sizeof word) / 3, sizeof word);
        mark = (mark ^ word) * 0x9e3779b97f4a7c15u;
        mark ^= mark >> 32;
    }
    for (int i = 0; i < MARK; i++) target[i] = "0123456789abcdef"[mark >> (4 * i) & 15];
}

/* The shortened lines in `target`, which has as much room as they have; their size, or -1 when some string is not valid. */
static Py_ssize_t shorten_into(char *target, Cursor c) {
    char *start = target;
    while (c.at < c.end) {
        if ((uint8_t)*c.at >= 0x80) return -1;
        if (*c.at != '"') {
            *target++ = *c.at++;
            continue;
        }
        const char *opening = c.at;
        String string;
        if (read_string(&c, &string) < 0) return -1;
        if (string.size <= KEPT || string.is_respelled) { /* whether \u is half a character is for the decoder to say */
            memcpy(target, opening, string.size + 2);
            target += string.size + 2;
        } else {
            *target++ = '"';
            write_mark(target, &string);
            target += MARK;
            *target++ = '"';
        }
    }
    return target - start;
}

static PyObject *shorten(PyObject *module, PyObject *given) {
    (void)module;
    Py_buffer lines;
    if (PyObject_GetBuffer(given, &lines, PyBUF_SIMPLE) < 0) return NULL;
    PyObject *found = PyBytes_FromStringAndSize(NULL, lines.len);
    if (found) {
        Cursor c = {.at = lines.buf, .end = (const char *)lines.buf + lines.len};
        Py_ssize_t size = shorten_into(PyBytes_AS_STRING(found), c);
        if (size < 0) Py_SETREF(found, Py_NewRef(Py_None));
        else _PyBytes_Resize(&found, size);
    }
    PyBuffer_Release(&lines);
    return found;
}

/* The size of a separator (U+0085, U+2028 or U+2029) that ends with this byte, or 0. */
static size_t separator_size(const uint8_t *start, const uint8_t *last) {
    if (*last == 0x85) return last - start >= 1 && last[-1] == 0xc2 ? 2 : 0;
    return last - start >= 2 && last[-1] == 0x80 && last[-2] == 0xe2 ? 3 : 0;
}

/* The next byte that may be the last of a separator. */
static const uint8_t *next_last(const uint8_t *at, const uint8_t *end) {
#ifdef __SSE2__
    const __m128i low = _mm_set1_epi8((char)0xa8), high = _mm_set1_epi8((char)0xa9), next = _mm_set1_epi8((char)0x85);
    for (; end - at >= 16; at += 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)at);
        __m128i either = _mm_or_si128(_mm_cmpeq_epi8(bytes, low), _mm_cmpeq_epi8(bytes, high));
        int mask = _mm_movemask_epi8(_mm_or_si128(either, _mm_cmpeq_epi8(bytes, next)));
        if (mask) return at + __builtin_ctz((unsigned)mask);
    }
#endif
    while (at < end && *at != 0xa8 && *at != 0xa9 && *at != 0x85) at++;
    return at;
}

static size_t count_separators(const uint8_t *start, const uint8_t *end) {
    size_t count = 0;
    for (const uint8_t *at = next_last(start, end); at < end; at = next_last(at + 1, end))
        count += separator_size(start, at) != 0;
    return count;
}

static PyObject *on_one_line(PyObject *module, PyObject *line) {
    (void)module;
    if (!PyBytes_Check(line)) return PyErr_Format(PyExc_TypeError, "a line is bytes, not %.100s", Py_TYPE(line)->tp_name);
    const uint8_t *start = (const uint8_t *)PyBytes_AS_STRING(line), *end = start + PyBytes_GET_SIZE(line);
    size_t count = count_separators(start, end);
    if (!count) return Py_NewRef(line);
    PyObject *found = PyBytes_FromStringAndSize(NULL, PyBytes_GET_SIZE(line) + (Py_ssize_t)count * 4); /* six for two or three */
    if (!found) return NULL;
    char *target = PyBytes_AS_STRING(found);
    const uint8_t *copied = start;
    for (const uint8_t *at = next_last(start, end); at < end; at = next_last(at + 1, end)) {
        size_t size = separator_size(start, at);
        if (!size) continue;
        size_t before = (size_t)(at + 1 - size - copied);
        memcpy(target, copied, before);
        memcpy(target + before, *at == 0x85 ? "\\u0085" : *at == 0xa8 ? "\\u2028" : "\\u2029", 6);
        target += before + 6;
        copied = at + 1;
    }
    memcpy(target, copied, (size_t)(end - copied));
    _PyBytes_Resize(&found, target + (end - copied) - PyBytes_AS_STRING(found));
    return found;
}

static PyObject *is_spelled_once(PyObject *module, PyObject *given) {
    (void)module;
    Py_buffer string;
    if (PyObject_GetBuffer(given, &string, PyBUF_SIMPLE) < 0) return NULL;
    const char *at = string.buf, *end = at + string.len;
    int is_once = 1;
    while (is_once && at < end && (at = memchr(at, '\\', (size_t)(end - at))) && ++at < end) is_once = *at != 'u' && *at != '/';
    PyBuffer_Release(&string);
    return PyBool_FromLong(is_once);
}

enum { MOST_OUTLINE = 512, MOST_DIGITS = 15 /* below 2^53 */, DATE = 10, DASH = 4 /* where a date has its first */ };

static void skip_space(Cursor *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\r' || *c->at == '\t')) c->at++;
}

static int skip_mark(Cursor *c, char mark) {
    skip_space(c);
    if (c->at == c->end || *c->at != mark) return LEFT;
    c->at++;
    skip_space(c);
    return TAKEN;
}

static int skip_digits(Cursor *c) {
    if (c->at < c->end && *c->at == '-') c->at++;
    const char *first = c->at;
    while (c->at < c->end && *c->at >= '0' && *c->at <= '9') c->at++;
    size_t digits = (size_t)(c->at - first);
    return digits && digits <= MOST_DIGITS && (digits == 1 || *first != '0') ? TAKEN : LEFT;
}

/* The type of a harmless value (a text that is no date, a small whole number, a truth value), or 0. */
static char harmless_type(Cursor *c) {
    String text;
    if (c->at == c->end) return 0;
    switch (*c->at) {
    case '"':
        if (read_string(c, &text) < 0 || text.is_respelled) return 0;
        return text.size >= DATE && text.text[DASH] == '-' ? 0 : 's';
    case 't':
        if (c->end - c->at < 4 || memcmp(c->at, "true", 4) != 0) return 0;
        c->at += 4;
        return 'b';
    case 'f':
        if (c->end - c->at < 5 || memcmp(c->at, "false", 5) != 0) return 0;
        c->at += 5;
        return 'b';
    default: return skip_digits(c) < 0 ? 0 : 'i';
    }
}

/* The size of the outline, or -1 when the object is not flat and harmless, or has too long keys. */
static Py_ssize_t outline_into(char *target, Cursor c) {
    char *start = target;
    if (skip_mark(&c, '{') < 0) return -1;
    do {
        String key;
        if (c.at == c.end || *c.at != '"' || read_string(&c, &key) < 0 || key.is_respelled) return -1;
        if (skip_mark(&c, ':') < 0 || key.size + 3 > (size_t)(start + MOST_OUTLINE - target)) return -1;
        memcpy(target, key.text, key.size);
        target += key.size;
        *target++ = '"'; /* which is in no key */
        if (!(*target++ = harmless_type(&c))) return -1;
    } while (skip_mark(&c, ',') == TAKEN);
    return skip_mark(&c, '}') == TAKEN && c.at == c.end ? target - start : -1;
}

static PyObject *flat_outline(PyObject *module, PyObject *given) {
    (void)module;
    char outline[MOST_OUTLINE];
    Py_ssize_t size = 0;
    const char *text = PyUnicode_Check(given) ? PyUnicode_AsUTF8AndSize(given, &size) : NULL;
    if (!text) { /* half a character: the decoder will say so */
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    size = outline_into(outline, (Cursor){.at = text, .end = text + size});
    if (size < 0) Py_RETURN_NONE;
    return PyBytes_FromStringAndSize(outline, size);
}

static PyMethodDef functions[] = {
    {"shorten", shorten, METH_O, NULL},
    {"on_one_line", on_one_line, METH_O, NULL},
    {"is_spelled_once", is_spelled_once, METH_O, NULL},
    {"flat_outline", flat_outline, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_texts", .m_size = 0, .m_methods = functions};

PyMODINIT_FUNC PyInit__texts(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddStringConstant(module, "SOURCE_DIGEST", SOURCE_DIGEST) < 0) Py_CLEAR(module);
    return module;
}
