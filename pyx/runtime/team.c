/* Chooses the kind of threads, OpenMP or the pool, and reports a shortage of threads to the program. */
#include "runtime/team.h"

#include <stddef.h>
#include <string.h>

#include "lnrnn.h"
#include "runtime/floats.h"
#include "runtime/threads.h"

static const lnrnn_team_kind *chosen; /* NULL: the default */
static void (*shortage)(int wanted, int given);
static unsigned generation = 1;

/* GCOVR_EXCL_BR_START: a build without OpenMP, or without threads */
static const lnrnn_team_kind *kind(void)
{
    const lnrnn_team_kind *k = __atomic_load_n(&chosen, __ATOMIC_RELAXED);
    return k ? k : lnrnn_openmp_team() ? lnrnn_openmp_team() : lnrnn_pool_team();
}

const char *lnrnn_team_name(void) { return kind() ? kind()->name : "none"; }

size_t lnrnn_team_list(const char *names[2])
{
    size_t n = 0;
    if (lnrnn_openmp_team())
        names[n++] = lnrnn_openmp_team()->name;
    if (lnrnn_pool_team())
        names[n++] = lnrnn_pool_team()->name;
    return n;
}

int lnrnn_team_use(const char *name)
{
    const lnrnn_team_kind *const kinds[] = {lnrnn_openmp_team(), lnrnn_pool_team()};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        if (kinds[k] && !strcmp(name, kinds[k]->name)) {
            /* GCOVR_EXCL_BR_STOP */
            __atomic_store_n(&chosen, kinds[k], __ATOMIC_RELAXED);
            return 0;
        }
    }
    return -1;
}

void lnrnn_on_shortage(void (*report)(int wanted, int given))
{
    __atomic_store_n(&shortage, report, __ATOMIC_RELEASE);
}

void lnrnn_try_threads_again(void) { __atomic_add_fetch(&generation, 1, __ATOMIC_RELAXED); }

unsigned lnrnn_team_generation(void) { return __atomic_load_n(&generation, __ATOMIC_RELAXED); }

lnrnn_teams *lnrnn_teams_of_thread(void)
{
    static LNRNN_THREAD_LOCAL lnrnn_teams own;
    return &own;
}

/* GCOVR_EXCL_BR_LINE: a build without threads */
int lnrnn_can_have_team(int threads) { return threads > 1 && kind() && kind()->available(); }

typedef struct {
    void (*body)(void *ctx, int worker, int team);
    void *ctx;
} share;

static void in_default_floats(void *ctx, int worker, int team)
{
    LNRNN_DEFAULT_FLOATS;
    const share *s = ctx;
    s->body(s->ctx, worker, team);
}

int lnrnn_run_team(int threads, int64_t arrival, void (*body)(void *ctx, int worker, int team), void *ctx)
{
    int short_of = 0;
    share s = {body, ctx};
    const int team = kind()->run(threads, arrival, in_default_floats, &s, &short_of);
    void (*const report)(int, int) = __atomic_load_n(&shortage, __ATOMIC_ACQUIRE);
    if (short_of && report) /* GCOVR_EXCL_BR_LINE: Python always reports */
        report(threads, team);
    return team;
}
