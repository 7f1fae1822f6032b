/* Links liblnrnn and embeds Python, whose module lnrnn must use the same liblnrnn. The program prints "passed". */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <lnrnn.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(right)                                           \
    do {                                                       \
        if (!(right)) {                                        \
            printf("%s:%d: %s\n", __FILE__, __LINE__, #right); \
            exit(1);                                           \
        }                                                      \
    } while (0)

enum { VALUES = 1 << 21 };
static float x[VALUES], y[VALUES];

/* Runs Python code. */
static void run(const char *code) { CHECK(PyRun_SimpleString(code) == 0); }

int main(void)
{
    const char *sets[LNRNN_ISAS];
    const size_t last = lnrnn_isa_list(sets) - 1;
    /* Python reads the values that a program has set before it starts Python. */
    lnrnn_set_num_threads(3);
    CHECK(lnrnn_isa_use(sets[last]) == 0);
    Py_Initialize();
    run("import os, sys, lnrnn, numpy as np\n"
        "assert lnrnn.get_num_threads() == 3\n");
    char check[200];
    snprintf(check, sizeof check, "assert lnrnn.cpu_info()['isa'] == '%s'", sets[last]);
    run(check);

    /* C and Python share the number of threads. */
    run("lnrnn.set_num_threads(5)");
    CHECK(lnrnn_get_num_threads() == 5);
    lnrnn_set_num_threads(2);
    run("assert lnrnn.get_num_threads() == 2");

    /* C and Python share the instruction set. */
    run("from lnrnn import _core\n"
        "_core.use_isa(lnrnn.cpu_info()['available'][0])\n");
    CHECK(!strcmp(lnrnn_isa_name(), sets[0]));

    /* C and Python share the thread pool: Python's call uses the thread that the program's call has started. */
    run("threads = lambda: len(os.listdir('/proc/self/task')) if sys.platform == 'linux' else 0\n"
        "x = np.ones(1 << 21, np.float32)\n"
        "before = threads()\n");
    lnrnn_map(LNRNN_MAP_TANH, VALUES, x, y, 2);
    run("between = threads()\n"
        "lnrnn.tanh(x)\n"
        "assert between == before or threads() == between, (before, between, threads())\n");
    CHECK(Py_FinalizeEx() == 0);

    /* The library works after Python has ended. */
    x[0] = 1;
    lnrnn_map(LNRNN_MAP_TANH, VALUES, x, y, 2);
    CHECK(y[0] > 0.76f && y[0] < 0.77f);
    puts("passed");
    return 0;
}
