"""Faults of threads, cores, caches, memory and parts of calls."""

from fault import Fault

RUNTIME = "pyx/runtime"
THREADS, TEAMS = "tests/runtime/test_threads.py", "tests/runtime/test_teams.py"
TEST = "tests/runtime/test_runtime.py"
MEMORY, BITS = "tests/runtime/test_result_memory.py", "tests/rnn/test_equal_bits.py"
PARTS, BACK_OFF = "tests/runtime/test_interrupts.py", "tests/runtime/test_back_off.py"

FAULTS = [
    # --- backoff.c, barrier.c
    Fault(
        "backing off from oversubscribed cores never ends",
        f"{RUNTIME}/backoff.c",
        r"return until && lnrnn_nanoseconds() < until;",
        r"return until && (FAULT || lnrnn_nanoseconds() < until);",
        BACK_OFF,
    ),
    Fault(
        "nobody backs off from oversubscribed cores",
        f"{RUNTIME}/backoff.c",
        r"__atomic_store_n(&back_off_until, now + length, __ATOMIC_RELAXED);",
        r"__atomic_store_n(&back_off_until, FAULT ? 0 : now + length, __ATOMIC_RELAXED);",
        BACK_OFF,
    ),
    Fault(
        "a barrier counts one who has not come",
        f"{RUNTIME}/barrier.c",
        r"__atomic_store_n(&b->arrived, 0, __ATOMIC_RELAXED);",
        r"__atomic_store_n(&b->arrived, FAULT ? 1 : 0, __ATOMIC_RELAXED);",
        f"{BITS} -k 'threads and avx2 and units'",
    ),
    # --- blocks.c
    Fault(
        "any kept block will do that is large enough",
        f"{RUNTIME}/blocks.c",
        r"if (bytes >= size && bytes - size <= size / 4 + UNIT",
        r"if (bytes >= size && (FAULT || bytes - size <= size / 4 + UNIT)",
        f"{MEMORY} -k leaves_a_large_block",
    ),
    Fault(
        "half of a block is copied when it grows",
        f"{RUNTIME}/blocks.c",
        r"memcpy(other, block, size < bytes ? size : bytes);",
        r"memcpy(other, block, (size < bytes ? size : bytes) / (FAULT ? 2 : 1));",
        f"{MEMORY} -k resized",
    ),
    Fault(
        "blocks that are taken count as kept",
        f"{RUNTIME}/blocks.c",
        r"__atomic_fetch_sub(&kept_bytes, bytes_of(entry), __ATOMIC_RELAXED);",
        r"if (!FAULT) __atomic_fetch_sub(&kept_bytes, bytes_of(entry), __ATOMIC_RELAXED);",
        MEMORY,
    ),
    Fault(
        "what is kept is not marked as free for the kernel",
        f"{RUNTIME}/blocks.c",
        r"(bytes > LNRNN_KEPT_AS_IS && madvise(block, bytes, MADV_FREE))",
        r"(bytes > LNRNN_KEPT_AS_IS && !FAULT && madvise(block, bytes, MADV_FREE))",
        f"{MEMORY} -k for_the_taking",
    ),
    Fault(
        "the oldest block is not unmapped where too much is kept",
        f"{RUNTIME}/blocks.c",
        "        if (__atomic_load_n(&kept_bytes, __ATOMIC_RELAXED) <= LNRNN_KEPT_BYTES)\n            break;",
        "        if (FAULT || __atomic_load_n(&kept_bytes, __ATOMIC_RELAXED) <= LNRNN_KEPT_BYTES)\n "
        "           break;",
        f"{MEMORY} -k younger_is_kept",
    ),
    Fault(
        "a kept block stays in its place when it is taken",
        f"{RUNTIME}/blocks.c",
        r"&& __atomic_compare_exchange_n(&kept[i], &entry, 0, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))",
        r"&& __atomic_compare_exchange_n(&kept[i], &entry, FAULT ? entry : 0, 0,"
        r" __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))",
        MEMORY,
    ),
    # --- caches.c
    Fault(
        "the cache of instructions counts as that of data",
        f"{RUNTIME}/caches.c",
        r"if (type == 2) /*",
        r"if (type == 2 && !FAULT) /*",
        "tests/runtime/test_caches.py -k linux_knows",
    ),
    Fault(
        "a cache has a set too few",
        f"{RUNTIME}/caches.c",
        r"sets = (size_t)c + 1;",
        r"sets = (size_t)c + (FAULT ? 0 : 1);",
        "tests/runtime/test_caches.py -k linux_knows",
    ),
    # --- cores.c
    Fault(
        "the affinity mask is not looked at",
        f"{RUNTIME}/cores.c",
        r"const int n = sched_getaffinity(0, size, set) == 0 ?",
        r"const int n = sched_getaffinity(0, size, set) == 0 && !FAULT ?",
        f"{THREADS} -k one_core",
    ),
    Fault(
        "the mask of the initial thread counts where OpenMP has bound it",
        f"{RUNTIME}/cores.c",
        r"if (omp_get_proc_bind() != omp_proc_bind_false && omp_get_num_places() > 0)",
        r"if (!FAULT && omp_get_proc_bind() != omp_proc_bind_false && omp_get_num_places() > 0)",
        f"{THREADS} -k openmp_binds",
    ),
    Fault(
        "workers may run at the first of OpenMP's places alone",
        f"{RUNTIME}/cores.c",
        r"for (int place = 0; place < omp_get_num_places(); place++) {",
        r"for (int place = 0; place < (FAULT ? 1 : omp_get_num_places()); place++) {",
        f"{TEAMS} -k every_core",
    ),
    Fault(
        "a quota counts microseconds as cores",
        f"{RUNTIME}/cores.c",
        r"const int whole = (int)(quota / period);",
        r"const int whole = FAULT ? (int)quota : (int)(quota / period);",
        f"{THREADS} -k quota",
    ),
    Fault(
        "a fraction of a core is rounded down",
        f"{RUNTIME}/cores.c",
        r"return whole < quota / period ? whole + 1 : whole;",
        r"return whole < quota / period && !FAULT ? whole + 1 : whole;",
        f"{THREADS} -k quota",
    ),
    Fault(
        "a quota of version 1 without a period holds",
        f"{RUNTIME}/cores.c",
        r"if (!(quota > 0 && period > 0 && quota / period < cpus))",
        r"if (!(quota > 0 && (FAULT || period > 0) && quota / (FAULT && !(period > 0) ? 1e5 :"
        r" period) < cpus))",
        f"{THREADS} -k quota",
    ),
    Fault(
        "the quotas of the groups above do not count",
        f"{RUNTIME}/cores.c",
        r"char *slash = strrchr(group, '/');",
        r"if (FAULT) break; char *slash = strrchr(group, '/');",
        f"{THREADS} -k quota",
    ),
    Fault(
        "the root of all groups does not count",
        f"{RUNTIME}/cores.c",
        "            if (!slash)\n                break;",
        "            if (!slash || (FAULT && slash == group))\n                break;",
        f"{THREADS} -k quota",
    ),
    Fault(
        "cpuset and cpuacct count as cpu",
        f"{RUNTIME}/cores.c",
        r"if (!strncmp(item, name, n) && (!item[n] || item[n] == ','))",
        r"if (!strncmp(item, name, n) && (FAULT || !item[n] || item[n] == ','))",
        f"{THREADS} -k controllers",
    ),
    Fault(
        "only the first of a list of controllers counts",
        f"{RUNTIME}/cores.c",
        r"item = strchr(item, ',') ? strchr(item, ',') + 1 : NULL)",
        r"item = strchr(item, ',') && !FAULT ? strchr(item, ',') + 1 : NULL)",
        f"{THREADS} -k quota",
    ),
    # --- dispatch.c
    Fault(
        "an instruction set that there is not is taken without a word",
        f"{RUNTIME}/dispatch.c",
        r"return -1;",
        r"return FAULT ? 0 : -1;",
        f"{TEST} -k unknown_isa",
    ),
    Fault(
        "the best instruction set is taken whatever was asked for",
        f"{RUNTIME}/dispatch.c",
        r"__atomic_store_n(&active, &sets[i].kernels, __ATOMIC_RELAXED);",
        r"__atomic_store_n(&active, &sets[FAULT ? 0 : i].kernels, __ATOMIC_RELAXED);",
        f"{TEST} -k lnrnn_isa_chooses",
    ),
    # --- parts.c
    Fault(
        "a part has work for one thread however many there are",
        f"{RUNTIME}/parts.c",
        r"j.left = whole_number(part * threads);",
        r"j.left = whole_number(part * (FAULT ? 1 : threads));",
        f"{PARTS} -k 'signals_are_handled and call'",
        equivalent="parts may be of any size: more of them serve interrupts sooner",
    ),
    Fault(
        "a call in parts is over when its last task has begun",
        f"{RUNTIME}/parts.c",
        r"return !unfinished(n, position);",
        r"return FAULT ? unfinished(n, position) < 2 : !unfinished(n, position);",
        f"{PARTS} -k 'inference and groups and RNN'",
    ),
    # --- tasks.c
    Fault(
        "the last task is left out",
        f"{RUNTIME}/tasks.c",
        r"__ATOMIC_RELAXED)) < j->n) {",
        r"__ATOMIC_RELAXED)) < j->n - (FAULT ? 1 : 0)) {",
        "tests/norm/test_layer_norm.py -k 'or_the_threads and avx2'",
    ),
    Fault(
        "a worker looks at its own queue alone and at those behind it",
        f"{RUNTIME}/tasks.c",
        r"for (size_t s = 0; s < j->queues; s++) {",
        r"for (size_t s = 0; s < (FAULT ? j->queues - (size_t)worker % j->queues : j->queues); s++) {",
        f"{TEST} -k fewer_threads",
        equivalent="worker 0, which has no work behind it, looks at all queues: only the time changes",
    ),
    Fault(
        "the largest team of a thread's calls is the last one",
        f"{RUNTIME}/tasks.c",
        r"largest->tasks = team > largest->tasks ? team : largest->tasks;",
        r"largest->tasks = FAULT || team > largest->tasks ? team : largest->tasks;",
        f"{THREADS} -k the_tests_see",
    ),
    Fault(
        "more queues than there is room for",
        f"{RUNTIME}/tasks.c",
        r".queues = threads < QUEUES ? (size_t)threads : QUEUES,",
        r".queues = threads < QUEUES || FAULT ? (size_t)threads : QUEUES,",
        f"{THREADS} -k 'tries_again and pthread'",
    ),
    # --- team.c
    Fault(
        "set_num_threads does not try again to start threads",
        f"{RUNTIME}/team.c",
        r"__atomic_add_fetch(&generation, 1, __ATOMIC_RELAXED);",
        r"__atomic_add_fetch(&generation, FAULT ? 0 : 1, __ATOMIC_RELAXED);",
        f"{THREADS} -k tries_again",
    ),
    Fault(
        "the kind of team that was asked for is not taken",
        f"{RUNTIME}/team.c",
        r"__atomic_store_n(&chosen, kinds[k], __ATOMIC_RELAXED);",
        r"__atomic_store_n(&chosen, FAULT ? NULL : kinds[k], __ATOMIC_RELAXED);",
        f"{TEAMS} -k 'environment_chooses'",
    ),
    # --- team_openmp.c
    Fault(
        "the child of a fork asks OpenMP for threads that it does not have",
        f"{RUNTIME}/team_openmp.c",
        r"static void after_fork(void) { forked = 1; }",
        r"static void after_fork(void) { forked = !FAULT; }",
        f"{TEST} -k 'fork and openmp'",
    ),
    Fault(
        "as many threads are tried as the team will have",
        f"{RUNTIME}/team_openmp.c",
        r"more = (larger ? 2 * helpers : helpers) - own.waiting;",
        r"more = (larger && !FAULT ? 2 * helpers : helpers) - own.waiting;",
        f"{THREADS} -k some_threads",
    ),
    Fault(
        "a team takes all threads that could be started",
        f"{RUNTIME}/team_openmp.c",
        r"helpers = (own.waiting + found) / 2;",
        r"helpers = (own.waiting + found) / (FAULT ? 1 : 2);",
        f"{THREADS} -k some_threads",
    ),
    Fault(
        "OpenMP's own limit of threads is told as a shortage",
        f"{RUNTIME}/team_openmp.c",
        r"*short_of = given < threads && own.failed;",
        r"*short_of = given < threads && (FAULT || own.failed);",
        f"{THREADS} -k own_limit",
    ),
    Fault(
        "threads are tried again with every call after a failure",
        f"{RUNTIME}/team_openmp.c",
        r"own.failed = now;",
        r"own.failed = now + (FAULT ? 1 : 0);",
        f"{THREADS} -k 'set_num_threads_tries'",
    ),
    # --- team_pthread.c
    Fault(
        "workers are not given back",
        f"{RUNTIME}/team_pthread.c",
        "    give_back(first);\n    return team;",
        "    if (!FAULT)\n        give_back(first);\n    return team;",
        f"{TEAMS} -k sleep_after",
    ),
    Fault(
        "a call does not wait for its last worker",
        f"{RUNTIME}/team_pthread.c",
        r"        await(w);",
        r"        if (!FAULT || w->next) await(w);",
        f"{TEAMS} -k same_bits",
    ),
    Fault(
        "a worker does a job that was taken back",
        f"{RUNTIME}/team_pthread.c",
        r"if (!change(w, JOB, BEGUN))",
        r"if (!change(w, JOB, BEGUN) && !FAULT)",
        f"{BACK_OFF} -k does_not_come",
    ),
    Fault(
        "workers that come in time have one number",
        f"{RUNTIME}/team_pthread.c",
        r"w->index = team++;",
        r"w->index = FAULT ? 1 : team, team++;",
        f"{TEAMS} -k same_bits",
    ),
    Fault(
        "the child of a fork gives work to workers that it does not have",
        f"{RUNTIME}/team_pthread.c",
        r"idle = NULL;",
        r"idle = FAULT ? idle : NULL;",
        f"{TEAMS} -k fork",
    ),
    Fault(
        "workers take the program's signals",
        f"{RUNTIME}/team_pthread.c",
        r"pthread_sigmask(SIG_SETMASK, &all, &usual); /* inherited",
        r"pthread_sigmask(SIG_SETMASK, FAULT ? NULL : &all, &usual); /* inherited",
        f"{TEAMS} -k signals",
    ),
    Fault(
        "workers run where OpenMP has bound the thread that starts them",
        f"{RUNTIME}/team_pthread.c",
        r"if (lnrnn_bound_cpus(sizeof cpus, &cpus))",
        r"if (!FAULT && lnrnn_bound_cpus(sizeof cpus, &cpus))",
        f"{TEAMS} -k every_core",
    ),
    Fault(
        "workers have the system's stacks, of 8 MiB",
        f"{RUNTIME}/team_pthread.c",
        r"pthread_attr_setstacksize(&attributes, LNRNN_STACK);",
        r"if (!FAULT) pthread_attr_setstacksize(&attributes, LNRNN_STACK);",
        f"{THREADS} -k half_of",
    ),
    Fault(
        "workers are started until there is no address space left",
        f"{RUNTIME}/team_pthread.c",
        r"if (*started < fit &&",
        r"if ((FAULT || *started < fit) &&",
        f"{THREADS} -k half_of",
    ),
    Fault(
        "a shortage of workers is not told",
        f"{RUNTIME}/team_pthread.c",
        "            *short_of = 1;",
        "            *short_of = !FAULT;",
        f"{THREADS} -k 'pool_starts'",
    ),
    Fault(
        "workers spin for ever",
        f"{RUNTIME}/team_pthread.c",
        r"lnrnn_oversubscribed() ? 0 : LNRNN_POOL_SPIN))",
        r"FAULT ? (int64_t)1 << 60 : lnrnn_oversubscribed() ? 0 : LNRNN_POOL_SPIN))",
        f"{TEAMS} -k sleep_after",
    ),
    # --- trial.c
    Fault(
        "stacks may take all of the address space that is left",
        f"{RUNTIME}/trial.c",
        r"(limit.rlim_cur - used) / 2 / bytes : 0;",
        r"(limit.rlim_cur - used) / (FAULT ? 1 : 2) / bytes : 0;",
        f"{THREADS} -k half_of",
    ),
    Fault(
        "a size of stacks without a unit is one in bytes",
        f"{RUNTIME}/trial.c",
        r"strchr(units, *end++) : units + 2;",
        r"strchr(units, *end++) : units + (FAULT ? 0 : 2);",
        f"{THREADS} -k 'openmp_s_stacks or stacks_of_threads'",
    ),
    Fault(
        "blanks before a size of stacks hide it",
        f"{RUNTIME}/trial.c",
        'text += strspn(text, " \\t");',
        'text += FAULT ? 0 : strspn(text, " \\t");',
        f"{THREADS} -k openmp_s_stacks",
    ),
    Fault(
        "megabytes of stacks are kilobytes",
        f"{RUNTIME}/trial.c",
        r"(int)(unit - units) / 2 * 10 : 0;",
        r"(int)(unit - units) / 2 * 10 - (FAULT && unit - units > 3 ? 10 : 0) : 0;",
        f"{THREADS} -k set_num_threads_tries",
    ),
    Fault(
        "libgomp's older name for the size of stacks is not read",
        f"{RUNTIME}/trial.c",
        '    if (!stack_bytes)\n        stack_bytes = size_in(getenv("GOMP_STACKSIZE"));',
        '    if (!stack_bytes && !FAULT)\n        stack_bytes = size_in(getenv("GOMP_STACKSIZE"));',
        f"{THREADS} -k stacks",
    ),
    Fault(
        "threads that were tried end while the next ones are started",
        f"{RUNTIME}/trial.c",
        "        pthread_mutex_lock(&end);\n        for",
        "        if (!FAULT)\n            pthread_mutex_lock(&end);\n        for",
        f"{THREADS} -k 'some_threads or no_memory'",
    ),
]
