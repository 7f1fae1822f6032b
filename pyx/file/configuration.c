#include <stdlib.h>
#include <string.h>

#include "file/json.h"
#include "file/model_file.h"

/* A description, and facts about the file that a description lacks. */
typedef struct {
    lnrnn_description d;
    size_t bits;    /* activation_bits, or 0 if the file does not give it */
    int norm, pair; /* 1 if the norm is an object; 1 if zoneout is a list */
} configuration;

enum { SIZE, NUMBER, FLAG, CHOICE, RATES, NORM };
/* Bits of `of` in ENTRIES. OPTIONAL: the entry may be missing. NULLABLE: the entry may be null. GRU: the
 * entry may be missing in a GRU. The other bits are the kinds of networks that may have the entry. */
enum {
    ALL = 1,
    ACTIVATED = 2,
    ANY_NORM = 4,
    LAYER = 8,
    BATCH = 16,
    PAIR = 32,
    OPTIONAL = 64,
    NULLABLE = 128,
    SLSTM = 1024,
    GRU = 2048,
    OF_SLSTM = SLSTM | OPTIONAL
};
enum { OF_ALL = ALL | OPTIONAL, OF_LAYER = LAYER | OPTIONAL, OF_BATCH = BATCH | OPTIONAL };

#define AT(member) offsetof(configuration, member)

/* The entries of a configuration. choices: the names of the values first, first + 1, ... null: the value for
 * JSON's null. */
static const struct {
    const char *name;
    int type, of;
    size_t offset;
    const char *choices;
    int first, null;
} ENTRIES[] = {
    {"cell", CHOICE, ALL, AT(d.cell), lnrnn_cell_names, 0, 0},
    {"nonlinearity", CHOICE, ACTIVATED | GRU, AT(d.act), lnrnn_act_names, 0, 0},
    {"dtype", CHOICE, ALL, AT(d.weights), "one of 'float32', 'bfloat16', 'int8'", 0, 0},
    {"activation_bits", SIZE, OF_ALL | NULLABLE, AT(bits), NULL, 0, 0},
    {"input_size", SIZE, ALL, AT(d.input_size), NULL, 0, 0},
    {"hidden_size", SIZE, ALL, AT(d.hidden_size), NULL, 0, 0},
    {"num_layers", SIZE, ALL, AT(d.num_layers), NULL, 0, 0},
    {"proj_size", SIZE, OF_ALL, AT(d.proj_size), NULL, 0, 0},
    {"bias", FLAG, ALL, AT(d.bias), NULL, 0, 0},
    {"batch_first", FLAG, ALL, AT(d.batch_first), NULL, 0, 0},
    {"bidirectional", FLAG, ALL, AT(d.bidirectional), NULL, 0, 0},
    {"reverse", FLAG, OF_ALL, AT(d.reverse), NULL, 0, 0},
    {"reset_after", FLAG, OF_ALL, AT(d.reset_after), NULL, 0, 0},
    {"num_heads", SIZE, OF_ALL, AT(d.num_heads), NULL, 0, 0},
    {"gate_activation", CHOICE, OF_ALL, AT(d.gate_activation), "one of 'sigmoid', 'hard_sigmoid'", 0, 0},
    {"peepholes", FLAG, OF_ALL, AT(d.peepholes), NULL, 0, 0},
    {"exp_forget", FLAG, OF_SLSTM, AT(d.exp_forget), NULL, 0, 0},
    {"state_dtype", CHOICE, OF_SLSTM, AT(d.bfloat16_states), "one of 'float32', 'bfloat16'", 0, 0},
    {"dropout", NUMBER, OF_ALL, AT(d.dropout), NULL, 0, 0},
    {"zoneout", RATES, OF_ALL, AT(pair), NULL, 0, 0},
    {"zoneout.0", NUMBER, PAIR, AT(d.zoneout[0]), NULL, 0, 0},
    {"zoneout.1", NUMBER, PAIR, AT(d.zoneout[1]), NULL, 0, 0},
    {"norm", NORM, ALL | NULLABLE, AT(norm), NULL, 0, 0},
    {"norm.kind", CHOICE, ANY_NORM, AT(d.norm), "one of 'layer', 'batch', 'rms'", LNRNN_NORM_LAYER, 0},
    {"norm.eps", NUMBER, ANY_NORM | OPTIONAL, AT(d.eps), NULL, 0, 0},
    {"norm.placement", CHOICE, OF_LAYER | NULLABLE, AT(d.placement), lnrnn_placement_names, 0,
     LNRNN_PLACEMENTS},
    {"norm.cell", CHOICE, OF_LAYER | NULLABLE, AT(d.cell_norm), "one of 'out', 'carry'", LNRNN_CELL_OUT, 0},
    {"norm.span", CHOICE, OF_LAYER | NULLABLE, AT(d.span), "'all'", LNRNN_SPAN_ALL, 0},
    {"norm.inner_bias", FLAG, OF_LAYER, AT(d.inner_bias), NULL, 0, 0},
    {"norm.max_steps", SIZE, OF_BATCH | NULLABLE, AT(d.max_steps), NULL, 0, 0},
    {"norm.overrun", CHOICE, OF_BATCH, AT(d.overrun), "one of 'raise', 'last', 'mean', 'batch'", 0, 0},
    {"norm.momentum", NUMBER, OF_BATCH | NULLABLE, AT(d.momentum), NULL, 0, -1},
};
enum { NUM_ENTRIES = sizeof ENTRIES / sizeof *ENTRIES };
_Static_assert(NUM_ENTRIES <= 32, "`seen` has a bit for each entry");

/* Reads the value of entry k. Returns NULL, or a description of valid values if the value is invalid. */
static const char *read_value(int k, const lnrnn_json_value *v, configuration *c)
{
    void *const to = (char *)c + ENTRIES[k].offset;
    const int null = v->kind == 'n' && ENTRIES[k].of & NULLABLE, number = v->kind == 'i' || v->kind == 'd';
    switch (ENTRIES[k].type) {
    case SIZE:
        *(size_t *)to = (size_t)(null ? 0 : v->integer);
        return null || (v->kind == 'i' && v->integer >= 1) ? NULL : "an integer of at least 1";
    case NUMBER:
        *(double *)to = null ? ENTRIES[k].null : v->number;
        return null || (number && v->number >= 0) ? NULL : "a number of at least 0";
    case FLAG: *(int *)to = v->kind == 't'; return v->kind == 't' || v->kind == 'f' ? NULL : "true or false";
    case CHOICE: {
        const int choice = v->kind == '"' ? lnrnn_place(v->text, ENTRIES[k].choices) : -1;
        *(int *)to = null ? ENTRIES[k].null : ENTRIES[k].first + choice;
        return null || choice >= 0 ? NULL : ENTRIES[k].choices;
    }
    case RATES:
        c->pair = v->kind == '[';
        c->d.zoneout[0] = c->d.zoneout[1] = v->number;
        return c->pair || (number && v->number >= 0) ? NULL
                                                     : "a number of at least 0, or in an LSTM two numbers";
    default: c->norm = v->kind == '{'; return c->norm || null ? NULL : "null or an object";
    }
}

/* Reads the configuration into *d. Changes the text, because strings are decoded in place. */
static lnrnn_status read_configuration(char *text, size_t length, lnrnn_description *d, char *message)
{
    lnrnn_json json = {.at = text, .end = text + length};
    configuration c = {.d = lnrnn_describe(0, 0, 0)};
    unsigned seen = 0;
    lnrnn_json_value v = lnrnn_json_next(&json);
    c.d.norm = LNRNN_NORM_NONE;
    LNRNN_CHECK(v.kind == '{', "its configuration must be a JSON object");
    while ((v = lnrnn_json_next(&json)).kind) {
        const char *const outer = json.name[1], *const inner = json.name[2];
        char name[80];
        int k = 0;
        snprintf(name, sizeof name, "%.32s%s%.32s", outer, *inner ? "." : "", inner);
        while (k < NUM_ENTRIES && strcmp(name, ENTRIES[k].name))
            k++;
        LNRNN_CHECK(k < NUM_ENTRIES && !strchr(outer, '.'), "its configuration has the unknown entry '%s'",
                    name);
        LNRNN_CHECK(!(seen >> k & 1), "its configuration has the entry '%s' twice", name);
        seen |= 1u << k;
        const char *const expected = read_value(k, &v, &c), *const quote = v.kind == '"' ? "'" : "";
        const size_t shown = *quote ? strlen(v.text) : (size_t)(json.at - v.text);
        LNRNN_CHECK(!expected, "%s must be %s, got %s%.*s%s", name, expected, quote,
                    shown < 54 ? (int)shown : 54, v.text, quote);
    }
    LNRNN_CHECK(!json.wrong, "its configuration is not valid JSON at byte %td", json.wrong - text);
    const int is = ALL | (lnrnn_cell_table[c.d.cell].activated ? ACTIVATED : 0)
                   | (c.d.cell == LNRNN_GRU ? GRU : 0) | (c.d.cell == LNRNN_SLSTM ? SLSTM : 0)
                   | (c.norm ? ANY_NORM : 0) | (c.pair ? PAIR : 0)
                   | (!c.norm                        ? 0
                      : c.d.norm == LNRNN_NORM_BATCH ? BATCH
                                                     : LAYER);
    for (int k = 0; k < NUM_ENTRIES; k++) {
        const int has = seen >> k & 1, of = ENTRIES[k].of;
        LNRNN_CHECK(!has || of & is, "its configuration has the entry '%s', which this kind of network lacks",
                    ENTRIES[k].name);
        LNRNN_CHECK(has || of & OPTIONAL || !(of & is & ~GRU), "its configuration has no entry '%s'",
                    ENTRIES[k].name);
    }
    LNRNN_CHECK(!c.pair || c.d.cell == LNRNN_LSTM, "zoneout must be a number, or in an LSTM two numbers");
    LNRNN_CHECK(!c.bits || (c.d.weights == LNRNN_WEIGHT_I8 && (c.bits == 8 || c.bits == 14)),
                "activation_bits must be 14 or 8, and only with dtype int8, got %zu", c.bits);
    if (c.bits == 8)
        c.d.weights = LNRNN_WEIGHT_I8A8;
    *d = c.d;
    return lnrnn_description_resolve(d, message);
}

lnrnn_status lnrnn_description_read(const char *text, size_t length, lnrnn_description *d, char *message)
{
    char *const copy = malloc(length + 1);
    if (!copy) /* GCOVR_EXCL_BR_LINE: no memory */
        return lnrnn_fail(message, LNRNN_NO_MEMORY, "no memory for a configuration of %zu bytes", length);
    memcpy(copy, text, length);
    copy[length] = '\0';
    const lnrnn_status status = read_configuration(copy, length, d, message);
    free(copy);
    return status;
}
