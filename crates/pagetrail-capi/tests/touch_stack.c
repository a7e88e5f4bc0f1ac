/*
 * touch_stack.c: linked to programs that run under valgrind.
 *
 * Valgrind grows the stack when the program stores to it, but not when it puts a signal's frame there ("Can't extend
 * stack .. during signal delivery"); and the technique mprotect lives on signals. So the stack grows before main.
 */
#include <stddef.h>

static void touch(volatile char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i += 1024)
        bytes[i] = 1;
}

__attribute__((constructor)) static void touch_stack(void)
{
    char bytes[1 << 18];
    touch(bytes, sizeof bytes);
}
