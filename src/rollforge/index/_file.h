/* A file read from one place on, for `_rows.c`: as many whole lines at a time as fit into memory that stays near the processor. */

#pragma once

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    PAGE = 4096,
    ROOM = 1 << 20,       /* bytes of text held */
    MOST_ROOM = 32 << 20, /* for a line that is longer; one that is longer still is not read here */
};

typedef struct {
    int file;
    int64_t at;  /* where the text that is held begins in the file */
    size_t held; /* its bytes */
    char *memory;
    size_t room;
    int error; /* errno, when reading failed */
} Window;

/* The text begins as far behind the start of a page as it does in the file: what is copied between the two is aligned alike. */
static char *window_text(const Window *window) { return window->memory + window->at % PAGE; }

static int window_grow(Window *window) {
    size_t room = window->room ? window->room * 2 : ROOM;
    void *memory = NULL;
    if (room > MOST_ROOM) return 0;
    if (posix_memalign(&memory, PAGE, room)) {
        window->error = ENOMEM;
        return 0;
    }
    if (window->held) memcpy((char *)memory + window->at % PAGE, window_text(window), window->held);
    free(window->memory);
    window->memory = memory;
    window->room = room;
    return 1;
}

/* Reads on; the bytes of the whole lines held then, 0 when there are none. */
static size_t window_fill(Window *window) {
    for (;;) {
        size_t known = window->held, room = window->room ? window->room - (size_t)(window->at % PAGE) : 0;
        if (known == room) {
            if (!window_grow(window)) return 0;
            continue;
        }
        char *text = window_text(window);
        ssize_t more = pread(window->file, text + known, room - known, (off_t)(window->at + (int64_t)known));
        if (more < 0 && errno == EINTR) continue;
        if (more < 0) window->error = errno;
        if (more <= 0) return 0;
        window->held += (size_t)more;
        for (size_t size = window->held; size > known; size--)
            if (text[size - 1] == '\n') return size;
    }
}

/* Lets go of the first bytes. */
static void window_pass(Window *window, size_t bytes) {
    const char *rest = window_text(window) + bytes;
    window->at += (int64_t)bytes;
    window->held -= bytes;
    memmove(window_text(window), rest, window->held);
}
