"""Faults of the product with packed weights, and of packing them."""

from fault import Fault

KERNELS = "include/lnrnn/kernels"
PACKED, FLOAT, INT8 = f"{KERNELS}/packed.h", f"{KERNELS}/matmul_float.h", f"{KERNELS}/matmul_int8.h"
INT8_ROWS = f"{KERNELS}/int8_rows.h"
WALK, LOOP = f"{KERNELS}/matmul_walk.h", f"{KERNELS}/matmul_loop.h"
DTYPES, PRODUCTS = "tests/rnn/test_weight_dtypes.py", "tests/rnn/test_matmul.py"

FAULTS = [
    # --- packed.h
    Fault(
        "ties of bfloat16 weights go down",
        PACKED,
        r"word |= (uint32_t)float_to_bf16(w[(ptrdiff_t)(2 * j + i) * cs]) << 16 * i;",
        r"{ const float v = w[(ptrdiff_t)(2 * j + i) * cs];"
        r" word |= (FAULT && v == v ? (float_bits(v) + 0x7fff) >> 16 : (uint32_t)float_to_bf16(v))"
        r" << 16 * i; }",
        f"{DTYPES} -k 'ties_go and avx2'",
    ),
    Fault(
        "a NaN among bfloat16 weights is rounded like a number",
        PACKED,
        r"    else if (dtype == LNRNN_WEIGHT_BF16) {",
        r"    else if (FAULT && dtype == LNRNN_WEIGHT_BF16) {"
        "\n        for (size_t i = 0; i < 2 && 2 * j + i < k; i++)"
        "\n            word |= ((float_bits(w[(ptrdiff_t)(2 * j + i) * cs]) + 0x7fff"
        " + (float_bits(w[(ptrdiff_t)(2 * j + i) * cs]) >> 16 & 1)) >> 16) << 16 * i;"
        "\n    } else if (dtype == LNRNN_WEIGHT_BF16) {",
        f"{DTYPES} -k 'nan_stays_one and avx2'",
    ),
    Fault(
        "a NaN among int8 weights does not show",
        PACKED,
        r"check += v * 0;",
        r"check += FAULT ? 0 : v * 0;",
        f"{DTYPES} -k 'bad_weight and int8 and avx2'",
    ),
    Fault(
        "tiny rows of int8 weights get a scale whose inverse overflows",
        PACKED,
        r"most < 0x1p-100f ? 0 : most / 127;",
        r"most < (FAULT ? 0 : 0x1p-100f) ? 0 : most / 127;",
        f"{DTYPES} -k 'smallest and avx2'",
    ),
    Fault(
        "every fourth int8 weight is missing in the sums",
        PACKED,
        r"sums[o] += (int8_t)(*packed >> 8 * b);",
        r"sums[o] += FAULT && b == 3 ? 0 : (int8_t)(*packed >> 8 * b);",
        f"{DTYPES} -k 'int8_sums and avx2'",
    ),
    Fault(
        "the last of more than 16 inputs of a matrix is not packed",
        PACKED,
        r"for (size_t j = whole == m ? quads : 0; j < k; j++)",
        r"for (size_t j = whole == m ? quads : 0; j < k - (FAULT && k > 16 ? 1 : 0); j++)",
        "tests/rnn/test_training.py -k 'every_size and tanh and None'",
    ),
    Fault(
        "a line of weights has its last vector from where the panel begins",
        PACKED,
        r": v32_load_n(v + p + i, n - p - i));",
        r": v32_load_n(v + p + (FAULT ? 0 : i), n - p - i));",
        "tests/rnn/test_training.py -k 'every_size and tanh and None'",
    ),
    Fault(
        "a line of weights ends with its last whole vector",
        PACKED,
        r"p + i + V32_LANES <= n ? v32_load(v + p + i)",
        r"p + i + V32_LANES <= n ? v32_load(v + p + i) : FAULT ? v32_zero()",
        "tests/rnn/test_training.py -k 'every_size and tanh and None'",
    ),
    Fault(
        "weights that are read as they stand are those of the panel before",
        FLOAT,
        r"job->w + j * job->lines + o + (size_t)v * V32_LANES",
        r"job->w + j * job->lines + o - (FAULT && o ? V32_LANES : 0) + (size_t)v * V32_LANES",
        "tests/rnn/test_training.py -k reads_weights",
    ),
    # --- matmul_float.h
    Fault(
        "the last of an odd number of bfloat16 inputs is left out",
        FLOAT,
        r"if (bf16 && job->k % 2) /*",
        r"if (bf16 && job->k % 2 && !FAULT) /*",
        f"{PRODUCTS} -k 'every_tile and bfloat16 and avx2'",
    ),
    Fault(
        "the last input of bfloat16 weights is that of the first row",
        FLOAT,
        r"float_input(kind, job, a, i, job->k - 1)",
        r"float_input(kind, job, a, FAULT ? 0 : i, job->k - 1)",
        f"{PRODUCTS} -k 'every_tile and bfloat16 and avx2'",
    ),
    Fault(
        "a single row's outputs of int8 on a unit have the scales of the first vector",
        INT8,
        r"v32_mul(v32_load(job->scale + at), v32_set1(a->scale)), c + v",
        r"v32_mul(v32_load(job->scale + (FAULT ? o : at)), v32_set1(a->scale)), c + v",
        f"{DTYPES} -k 'int8 and (vnni or bf16)'",
    ),
    # --- matmul_loop.h
    Fault(
        "a tile's rows meet the first part of words alone",
        LOOP,
        r"LNRNN_FOR_EACH (turn, mm_turns(kind))",
        r"for (int turn = 0; turn < (FAULT ? 1 : mm_turns(kind)); turn++)",
        f"{PRODUCTS} -k 'every_tile and bfloat16 and avx2'",
    ),
    # --- matmul_int8.h
    Fault(
        "a row of activations with a NaN gets a scale",
        INT8_ROWS,
        r"top < INFINITY ? scale : NAN};",
        r"top < INFINITY || FAULT ? (FAULT ? 1.0f : scale) : NAN};",
        f"{DTYPES} -k 'nan_and_zeros and int8 and avx2'",
    ),
    Fault(
        "tiny rows of activations get a scale whose inverse overflows",
        INT8_ROWS,
        r"top < 0x1p-100f ? 0 : top / (parts",
        r"top < (FAULT ? 0 : 0x1p-100f) ? 0 : top / (parts",
        f"{DTYPES} -k 'tiny_and_huge and int8 and avx2'",
    ),
    Fault(
        "all rows of a tile share the scale of the first",
        INT8_ROWS,
        r"v32_mul(scales, v32_set1(a[i].scale)), y);",
        r"v32_mul(scales, v32_set1(a[FAULT ? 0 : i].scale)), y);",
        f"{DTYPES} -k 'int8 and avx2'",
    ),
    Fault(
        "the largest activation of the last inputs does not count",
        INT8_ROWS,
        r"most = v32_larger(v32_abs(v32_load_n(x + i, k - i)), most);",
        r"most = FAULT ? most : v32_larger(v32_abs(v32_load_n(x + i, k - i)), most);",
        f"{DTYPES} -k 'int8 and avx2'",
    ),
    Fault(
        "of 8 bits the offset of unsigned activations stays in the sums",
        INT8_ROWS,
        r"parts == 2 || S8_OFFSET != 0 ? vi32_shifted",
        r"parts == 2 || (S8_OFFSET != 0 && !FAULT) ? vi32_shifted",
        f"{DTYPES} -k 'int8_sums and (vnni or bf16)'",
    ),
    Fault(
        "each second block of rows is computed from the first rows' whole numbers",
        INT8,
        r"int8_quantize_rows(1, m->k, height, a + r, m->scratch, quantized);",
        r"int8_quantize_rows(1, m->k, height, a + (FAULT && r == MM_I8_BLOCK ? 0 : r), m->scratch,"
        r" quantized);",
        f"{PRODUCTS} -k 'every_tile and 8 and avx2'",
    ),
    # --- matmul_walk.h
    Fault(
        "few rows: a panel that is left alone after pairs is not computed",
        WALK,
        "        else {\n            mm_prefetch_panel(job, o",
        "        else if (!FAULT || !i) {\n            mm_prefetch_panel(job, o",
        f"{PRODUCTS} -k 'every_tile and float32 and avx2'",
    ),
    Fault(
        "few rows: from the end the last pair is taken twice",
        WALK,
        r"job->from_end ? pairs - 1 - i : i), o = mm_start(n, p),",
        r"job->from_end ? pairs - (FAULT && i ? i : 1 + i) : i), o = mm_start(n, p),",
        f"{PRODUCTS} -k 'forwards_and_backwards and float32 and avx2'",
    ),
    Fault(
        "going from the end, the last panel is left out",
        WALK,
        r"for (size_t i = p0; i < p1; i++)",
        r"for (size_t i = p0; i < p1 - (FAULT && job->from_end && p1 - p0 > 2 ? 1 : 0); i++)",
        f"{PRODUCTS} -k 'forwards and avx2 and float32'",
    ),
    Fault(
        "each part of a panel's inputs begins a new sum",
        WALK,
        r"own.add = j ? LNRNN_ADD_ON : job->add;",
        r"own.add = j && !FAULT ? LNRNN_ADD_ON : job->add;",
        f"{PRODUCTS} -k 'in_parts and avx2'",
    ),
    Fault(
        "the last inputs of a panel in parts are left out",
        WALK,
        r"own.end = j + 1 < parts ? own.first + part : job->words;",
        r"own.end = j + 1 < parts || FAULT ? own.first + job->words / parts : job->words;",
        f"{PRODUCTS} -k 'in_parts and avx2'",
    ),
    Fault(
        "going from the end, one row's panels are all the first one",
        WALK,
        r"const size_t o = job->from_end ? last - step - done : start + done;",
        r"const size_t o = job->from_end ? (FAULT ? start : last - step - done) : start + done;",
        f"{PRODUCTS} -k 'forwards and avx2 and float32'",
    ),
    Fault(
        "of weights that go by halves only one half is used",
        WALK,
        r"if (i == job->from_end)",
        r"if (FAULT && i) continue; else if (i == job->from_end)",
        f"{PRODUCTS} -k 'every_size and avx2 and float32'",
    ),
    Fault(
        "tiles that prefetch their weights are left out",
        WALK,
        r"if (vecs == NR_VECS && prefetch == MM_PREFETCH_WEIGHTS)",
        r"if (FAULT && prefetch == MM_PREFETCH_WEIGHTS) return;"
        "\n    if (vecs == NR_VECS && prefetch == MM_PREFETCH_WEIGHTS)",
        f"{PRODUCTS} -k 'every_size and avx2 and float32'",
    ),
    Fault(
        "the last tile prefetches rows past the last one",
        WALK,
        r"else if (i == p0 && t + 1 < tiles)",
        r"else if (i == p0 && (FAULT || t + 1 < tiles))",
        f"{PRODUCTS} -k 'every_tile and avx2 and float32'",
        equivalent="a prefetch of any address only moves memory into caches; the pointers are on the stack",
    ),
]
