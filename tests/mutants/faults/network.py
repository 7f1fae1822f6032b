"""Faults of layers and directions that are computed side by side."""

from fault import Fault

NETWORK, PLAN = "pyx/rnn/network.c", "pyx/rnn/network_plan.c"
TESTS = "tests/rnn/test_side_by_side.py"

FAULTS = [
    Fault(
        "a layer does not wait for the one before it",
        NETWORK,
        r"return position_of(&j->run[run - layer]) >= stop;",
        r"return FAULT || position_of(&j->run[run - layer]) >= stop;",
        f"{TESTS} -k out_of_step",
    ),
    Fault(
        "a call in parts that goes on begins anew",
        NETWORK,
        "    if (!n->resumed)\n        memset(j.run, 0,",
        "    if (!n->resumed || FAULT)\n        memset(j.run, 0,",
        f"{TESTS} -k in_parts",
    ),
    Fault(
        "all threads have one thread's memory",
        NETWORK,
        r"j->n->scratch + (size_t)worker * j->n->worker;",
        r"j->n->scratch + (FAULT ? 0 : (size_t)worker) * j->n->worker;",
        f"{TESTS} -k out_of_step",
    ),
    Fault(
        "layers are computed one after the other whatever the model says",
        PLAN,
        r"time < before * LNRNN_SIDE_BY_SIDE_BELOW",
        r"time < (FAULT ? 0 : before) * LNRNN_SIDE_BY_SIDE_BELOW",
        f"{TESTS} -k what_is_computed",
    ),
    Fault(
        "layers at once have caches and memory each for itself",
        "pyx/rnn/cost_model.c",
        r"hidden * w->at_once, caches, w->dtype, n * w->at_once);",
        r"hidden * (FAULT ? 1 : w->at_once), caches, w->dtype, FAULT ? n : n * w->at_once);",
        f"{TESTS} -k share_l3",
    ),
    Fault(
        "to begin a chunk of a layer costs nothing",
        PLAN,
        r"time += (double)n->layers * turns / (double)n->chunk * begin;",
        r"time += FAULT ? 0 : (double)n->layers * turns / (double)n->chunk * begin;",
        f"{TESTS} -k few_steps",
    ),
    Fault(
        "no layer waits for the one before it in the model",
        PLAN,
        r"return time / threads + (at_once - 1) * (double)n->chunk * step;",
        r"return time / threads + (FAULT ? 0 : at_once - 1) * (double)n->chunk * step;",
        f"{TESTS} -k few_steps",
    ),
]
