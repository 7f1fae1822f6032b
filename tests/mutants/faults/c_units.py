"""Faults of the products of bfloat16 on units, and of their emulation."""

from fault import Fault

KERNELS = "include/lnrnn/kernels"
UNITS, ROWS, TILES = "include/lnrnn/simd/units.h", f"{KERNELS}/short_rows.h", f"{KERNELS}/matmul_bf16_tiles.h"
DOT2, BLOCKS = f"{KERNELS}/matmul_bf16.h", f"{KERNELS}/matmul_blocks.h"
TESTS, ARM = "tests/rnn/test_units.py", "tests/simd/test_aarch64.py"

FAULTS = [
    Fault(
        "a unit's emulation keeps subnormal numbers",
        UNITS,
        r"return u & 0x7f800000 ? v : bits_float(u & 0x80000000);",
        r"return FAULT || u & 0x7f800000 ? v : bits_float(u & 0x80000000);",
        f"{TESTS} -k ends_of_the_range",
    ),
    Fault(
        "a unit's emulation rounds up to the smallest normal number before it looks for subnormal ones",
        UNITS,
        r"return fabs((double)x * y + before) < 0x1p-126 - 0x1p-151 ? copysignf(0, after) : after;",
        r"return FAULT ? without_subnormal(after)"
        "\n        : fabs((double)x * y + before) < 0x1p-126 - 0x1p-151 ? copysignf(0, after) : after;",
        f"{TESTS} -k rounds_up_to_the_smallest",
    ),
    Fault(
        "dot2's emulation adds the even input first",
        UNITS,
        r"sum[i] = unit_fma(a & 0xffff0000, p[i] & 0xffff0000, sum[i]);",
        r"if (FAULT) {"
        "\n            sum[i] = unit_fma(a << 16, p[i] << 16, sum[i]);"
        "\n            sum[i] = unit_fma(a & 0xffff0000, p[i] & 0xffff0000, sum[i]);"
        "\n            continue;"
        "\n        }"
        "\n        sum[i] = unit_fma(a & 0xffff0000, p[i] & 0xffff0000, sum[i]);",
        f"{TESTS} -k order_of_sums",
    ),
    Fault(
        "a tile's sums go on from what c holds",
        UNITS,
        r"float even[TILE_WORDS] = {0}, odd[TILE_WORDS] = {0};",
        r"float even[TILE_WORDS] = {0}, odd[TILE_WORDS] = {0};"
        "\n        for (int n = 0; FAULT && n < TILE_WORDS; n++) {"
        "\n            even[n] = bits_float(t->word[c][m][n]);"
        "\n            t->word[c][m][n] = 0;"
        "\n        }",
        f"{TESTS} -k order_of_sums",
    ),
    Fault(
        "tiles have sixteen rows whatever was asked for",
        UNITS,
        r"t->rows[i] = i < 6 ? rows : TILE_HEIGHT;",
        r"t->rows[i] = i < 6 && !FAULT ? rows : TILE_HEIGHT;",
        f"{TESTS} -k alone_and_in_every_batch",
    ),
    Fault(
        "what fills up the last word of a rounded row is not 0",
        ROWS,
        r"memset(y + k, 0, (2 * words - k) * sizeof *y);",
        r"memset(y + k, FAULT ? 0xff : 0, (2 * words - k) * sizeof *y);",
        f"{TESTS} -k 'order_of_sums and (31 or 33 or 5)'",
    ),
    Fault(
        "the last values of a row that are no whole vector are not rounded",
        ROWS,
        r"v32_store_n_bf16(y + i, v32_load_n(x + i, k - i), k - i);",
        r"v32_store_n_bf16(y + i, v32_load_n(x + i, FAULT ? 0 : k - i), k - i);",
        f"{TESTS} -k order_of_sums",
    ),
    Fault(
        "a dot2 product forgets what it is to be added to",
        DOT2,
        r"job->add == LNRNN_ADD_ON ? v32_load(c + i * cs + v * V32_LANES) : v32_zero();",
        r"!FAULT && job->add == LNRNN_ADD_ON ? v32_load(c + i * cs + v * V32_LANES) : v32_zero();",
        f"{TESTS} -k order_of_sums",
    ),
    Fault(
        "a product on tiles forgets what it is to be added to",
        f"{KERNELS}/matmul_tiles.h",
        r"if (b->add)",
        r"if (!FAULT && b->add)",
        f"{TESTS} -k order_of_sums",
    ),
    Fault(
        "the last block of rows begins where the one before it ends",
        TILES,
        r"const size_t r = (k + x + 1) * height > rows ? rows - height : (k + x) * height;",
        r"const size_t r = !FAULT && (k + x + 1) * height > rows ? rows - height : (k + x) * height;",
        f"{TESTS} -k alone_and_in_every_batch",
    ),
    Fault(
        "an odd number of blocks ends with a single one",
        TILES,
        r"pair = k == 0 && blocks % 2 ? 1 : 2;",
        r"pair = (FAULT ? k + 1 == blocks : k == 0) && blocks % 2 ? 1 : 2;",
        f"{TESTS} -k alone_and_in_every_batch",
    ),
    Fault(
        "int8 on tiles: outputs of rows that two blocks have are made twice",
        f"{KERNELS}/matmul_int8_tiles.h",
        r"had = k * height - r;",
        r"had = FAULT ? 0 : k * height - r;",
        f"{TESTS} -k int8_has_the_bits",
    ),
    Fault(
        "AVX-VNNI takes the weights as the unsigned factor",
        "include/lnrnn/simd/avx2.h",
        r'__asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(v) : "x"(s), "x"(w));',
        r'__asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(v) : "x"(FAULT ? w : s), "x"(FAULT ? s : w));',
        f"{TESTS} -k 'int8_has_the_bits and avxvnni'",
    ),
    Fault(
        "BFMMLA's emulation begins with the second two words",
        UNITS,
        r"sum[i] = odd_dot2(sum[i], of_a[i / 2 * 2 + k], of_b[i % 2 * 2 + k]);",
        r"sum[i] = odd_dot2(sum[i], of_a[i / 2 * 2 + (FAULT ? 1 - k : k)],"
        "\n                              of_b[i % 2 * 2 + (FAULT ? 1 - k : k)]);",
        f"{ARM} -k bfmmla",
    ),
    Fault(
        "the last of an odd number of rows has no products of whole blocks",
        BLOCKS,
        r"if (lines % 2)",
        r"if (!FAULT && lines % 2)",
        f"{ARM} -k every_unit",
    ),
    Fault(
        "both rows of a block of sums get those of the first",
        BLOCKS,
        r"line_sum(2 * i + h, v) = sum_half(c[i][v][0], c[i][v][1], h);",
        r"line_sum(2 * i + h, v) = sum_half(c[i][v][0], c[i][v][1], FAULT ? 0 : h);",
        f"{ARM} -k every_unit",
    ),
    Fault(
        "a block's second row goes on from what its first is added to",
        BLOCKS,
        r"sum_half(line_sum(2 * i, v), line_sum(2 * i + 1, v), h);",
        r"sum_half(line_sum(2 * i, v), line_sum(FAULT ? 2 * i : 2 * i + 1, v), h);",
        f"{ARM} -k bfmmla",
    ),
    Fault(
        "a CPU with dot products counts as one with matrix products of int8",
        "pyx/runtime/cpu_arm.c",
        r"return lnrnn_has_neonbf16() && HAS(I8MM, AT_HWCAP2, 13);",
        r"return (FAULT && lnrnn_has_neondot()) || (lnrnn_has_neonbf16() && HAS(I8MM, AT_HWCAP2, 13));",
        f"{ARM} -k chosen",
    ),
    Fault(
        "an emulation is the default",
        "pyx/runtime/dispatch.c",
        r"if (sets[i].chosen && sets[i].runs() && sets[i].chosen())",
        r"if (FAULT ? !sets[i].chosen : sets[i].chosen && sets[i].runs() && sets[i].chosen())",
        "tests/runtime/test_runtime.py -k best_is_chosen",
    ),
]
