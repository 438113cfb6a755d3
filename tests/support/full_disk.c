/* Preloaded: from write number `fault_at` on, what would enlarge files below FAULT_PATH fails. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_int writes, fault_at, fault = ENOSPC;
static char below[PATH_MAX];

/* Called by the tests: fail writes below `path` with `error` from number `at` on; 0: never. */
void set_fault(const char *path, int at, int error) {
    strncpy(below, path, PATH_MAX - 1);
    fault_at = at, fault = error, writes = 0;
}
int count_writes(void) { return writes; }

static int fails(const char *path) {
    if (!below[0] || strncmp(path, below, strlen(below))) return 0;
    int number = ++writes;
    if (!fault_at || number < fault_at) return 0;
    errno = fault;
    return 1;
}

static int fails_fd(int fd) {
    if (!below[0]) return 0;
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return fails(path);
}

#define NEXT(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))

ssize_t write(int fd, const void *b, size_t n) {
    return fails_fd(fd) ? -1 : NEXT(ssize_t, "write", int, const void *, size_t)(fd, b, n);
}
ssize_t writev(int fd, const struct iovec *v, int n) {
    return fails_fd(fd) ? -1 : NEXT(ssize_t, "writev", int, const struct iovec *, int)(fd, v, n);
}
ssize_t pwrite(int fd, const void *b, size_t n, off_t o) {
    return fails_fd(fd) ? -1 : NEXT(ssize_t, "pwrite", int, const void *, size_t, off_t)(fd, b, n, o);
}
ssize_t pwrite64(int fd, const void *b, size_t n, off64_t o) {
    return fails_fd(fd) ? -1
                        : NEXT(ssize_t, "pwrite64", int, const void *, size_t, off64_t)(fd, b, n, o);
}
int mkdir(const char *path, mode_t mode) {
    return fails(path) ? -1 : NEXT(int, "mkdir", const char *, mode_t)(path, mode);
}
static int opens(const char *name, const char *path, int flags, mode_t mode) {
    if ((flags & O_CREAT) && access(path, F_OK) && fails(path)) return -1;
    return NEXT(int, name, const char *, int, ...)(path, flags, mode);
}
#define OPEN(name)                                      \
    int name(const char *path, int flags, ...) {        \
        va_list a;                                      \
        va_start(a, flags);                             \
        mode_t mode = flags & O_CREAT ? va_arg(a, mode_t) : 0; \
        va_end(a);                                      \
        return opens(#name, path, flags, mode);         \
    }
OPEN(open)
OPEN(open64)
