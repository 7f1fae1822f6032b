"""Faults of the instruction sets, of 16-bit floats, and of exp, tanh and sigmoid."""

from fault import Fault

SIMD = "include/lnrnn/simd"
HALF, VMATH = "tests/norm/test_half.py", "tests/simd/test_vmath.py"
UNITS, AARCH64 = "tests/simd/test_simd.py", "tests/simd/test_aarch64.py"

FAULTS = [
    # --- half.h
    Fault(
        "ties go up in bfloat16",
        f"{SIMD}/half.h",
        r"(u + 0x7fff + (u >> 16 & 1)) >> 16",
        r"(u + 0x7fff + (FAULT ? 1 : u >> 16 & 1)) >> 16",
        f"{HALF} -k 'scalar and bfloat16'",
    ),
    Fault(
        "a NaN is rounded like a number in bfloat16",
        f"{SIMD}/half.h",
        r"(uint16_t)(v == v ?",
        r"(uint16_t)(v == v || FAULT ?",
        "tests/rnn/test_weight_dtypes.py -k nan_stays_one",
    ),
    Fault(
        "the largest subnormal numbers of float16 count as normal",
        f"{SIMD}/half.h",
        "        < 0x38800000)",
        "        < (FAULT ? 0x38000000 : 0x38800000))",
        f"{HALF} -k 'scalar and float16'",
    ),
    Fault(
        "a NaN becomes infinity in float16",
        f"{SIMD}/half.h",
        r"(a > 0x7f800000 ? 0x7e00 : 0x7c00)",
        r"(a > 0x7f800000 && !FAULT ? 0x7e00 : 0x7c00)",
        f"{HALF} -k 'every_number and scalar'",
    ),
    Fault(
        "infinity of float16 becomes 65536",
        f"{SIMD}/half.h",
        r"(exponent == 31 ? 255u : exponent + 112)",
        r"(exponent == 31 && !FAULT ? 255u : exponent + 112)",
        f"{HALF} -k 'every_number and scalar'",
    ),
    # --- avx2.h
    Fault(
        "AVX2: the last values of a row are written with one more",
        f"{SIMD}/avx2.h",
        r"_mm256_maskstore_ps(p, v32_mask_n(n), v); }",
        r"_mm256_maskstore_ps(p, v32_mask_n(FAULT && n < 7 ? n + 1 : n), v); }",
        "tests/norm/test_layer_norm.py -k 'behind_the_end and avx2'",
    ),
    Fault(
        "AVX2: 16-bit values are written one too many",
        f"{SIMD}/avx2.h",
        "    v16_store(t, v);\n    for (size_t i = 0; i < n; i++)",
        "    v16_store(t, v);\n    for (size_t i = 0; i < n + (FAULT ? 1 : 0) && i < 8; i++)",
        f"{HALF} -k 'avx2 and float16'",
    ),
    Fault(
        "AVX2: ties go down in bfloat16",
        f"{SIMD}/avx2.h",
        r"const __m256i even = _mm256_and_si256(high, _mm256_set1_epi32(1));",
        r"const __m256i even = FAULT ? _mm256_setzero_si256() : _mm256_and_si256(high,"
        r" _mm256_set1_epi32(1));",
        f"{HALF} -k 'avx2 and bfloat16'",
    ),
    Fault(
        "AVX2: a NaN is rounded like a number in bfloat16",
        f"{SIMD}/avx2.h",
        r"const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));",
        r"const __m256i nan = FAULT ? _mm256_setzero_si256()"
        r" : _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));",
        f"{HALF} -k 'every_number and avx2'",
    ),
    Fault(
        "AVX2: sums of weights are taken 32 times in int8's product",
        f"{SIMD}/avx2.h",
        r"_mm256_loadu_si256((const __m256i *)p), _mm_cvtsi32_si128(bits));",
        r"_mm256_loadu_si256((const __m256i *)p), _mm_cvtsi32_si128(bits - FAULT));",
        "tests/rnn/test_weight_dtypes.py -k 'int8_sums and avx2'",
    ),
    Fault(
        "AVX2: the sign of a weight does not reach activations of 8 bits",
        f"{SIMD}/avx2.h",
        r"_mm256_sign_epi8(_mm256_set1_epi32((int)a), w));",
        r"FAULT ? _mm256_set1_epi32((int)a) : _mm256_sign_epi8(_mm256_set1_epi32((int)a), w));",
        "tests/rnn/test_weight_dtypes.py -k 'int8_sums and avx2'",
    ),
    # --- avx512.h
    Fault(
        "AVX-512: the mask of 15 values has 14",
        f"{SIMD}/avx512.h",
        r"_bzhi_u32(0xffffu, (unsigned)n); }",
        r"_bzhi_u32(0xffffu, (unsigned)n - (FAULT && n == 15)); }",
        "tests/norm/test_layer_norm.py -k 'forward_at and avx512'",
    ),
    Fault(
        "AVX-512: ties go down in bfloat16",
        f"{SIMD}/avx512.h",
        r"const __m512i even = _mm512_and_si512(high, _mm512_set1_epi32(1));",
        r"const __m512i even = FAULT ? _mm512_setzero_si512() : _mm512_and_si512(high,"
        r" _mm512_set1_epi32(1));",
        f"{HALF} -k 'avx512 and bfloat16'",
    ),
    Fault(
        "AVX-512: the odd inputs of bfloat16 weights keep the even ones below them",
        f"{SIMD}/avx512.h",
        r"*odd = _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32((int)0xffff0000u)));",
        r"*odd = FAULT ? _mm512_castsi512_ps(w)"
        r" : _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32((int)0xffff0000u)));",
        "tests/rnn/test_weight_dtypes.py -k 'bfloat16_is and avx512'",
    ),
    Fault(
        "AVX-512: the mask of seven doubles has six",
        f"{SIMD}/avx512.h",
        r"_bzhi_u32(0xffu, (unsigned)n); }",
        r"_bzhi_u32(0xffu, (unsigned)n - (FAULT && n == 7)); }",
        "tests/norm/test_layer_norm.py -k 'forward_at and avx512'",
    ),
    # --- sse2.h
    Fault(
        "SSE2: three values are written with a fourth",
        f"{SIMD}/sse2.h",
        "    _mm_storeu_ps(t, v);\n    for (size_t i = 0; i < n; i++)",
        "    _mm_storeu_ps(t, v);\n    for (size_t i = 0; i < n + (FAULT && n == 3); i++)",
        "tests/norm/test_layer_norm.py -k 'sse2 and (backward_at or behind)'",
    ),
    Fault(
        "SSE2: of two doubles the wrong one is kept",
        f"{SIMD}/sse2.h",
        r"n ? _mm_move_sd(_mm_setzero_pd(), v) : _mm_setzero_pd();",
        r"n ? (FAULT ? _mm_move_sd(v, _mm_setzero_pd()) : _mm_move_sd(_mm_setzero_pd(), v))"
        r" : _mm_setzero_pd();",
        "tests/norm/test_layer_norm.py -k 'sse2 and forward_at'",
    ),
    Fault(
        "SSE2: the first pairs of int8 products are added twice",
        f"{SIMD}/sse2.h",
        r"_mm_castps_si128(_mm_shuffle_ps(low, high, 0xdd)));",
        r"_mm_castps_si128(FAULT ? _mm_shuffle_ps(low, high, 0x88) : _mm_shuffle_ps(low, high, 0xdd)));",
        "tests/rnn/test_weight_dtypes.py -k 'int8_sums and sse2'",
    ),
    # --- scalar.h
    Fault(
        "plain C: the larger of a NaN and a number is the NaN",
        f"{SIMD}/scalar.h",
        r"v32_max(v32 a, v32 b) { return a > b ? a : b; }",
        r"v32_max(v32 a, v32 b) { return FAULT ? (a < b ? b : a) : a > b ? a : b; }",
        f"{UNITS} -k 'which_of_two and scalar'",
    ),
    Fault(
        "plain C: the fourth int8 of a word is left out",
        f"{SIMD}/scalar.h",
        r"for (int b = 0; b < 32; b += 8)",
        r"for (int b = 0; b < 32 - (FAULT ? 8 : 0); b += 8)",
        "tests/rnn/test_weight_dtypes.py -k 'int8_sums and scalar'",
    ),
    # --- neon.h, in an emulator
    Fault(
        "NEON: the smaller of a NaN and a number is the NaN",
        f"{SIMD}/neon.h",
        r"v32_min(v32 a, v32 b) { return vbslq_f32(vcltq_f32(a, b), a, b); }",
        r"v32_min(v32 a, v32 b) { return FAULT ? vminq_f32(a, b) : vbslq_f32(vcltq_f32(a, b), a, b); }",
        f"{UNITS} -k 'which_of_two and neon'",
    ),
    Fault(
        "NEON: the last double of a row is written with the one behind it",
        f"{SIMD}/neon.h",
        "    else if (n)\n        *p = vgetq_lane_f64(v, 0);",
        "    else if (FAULT)\n        vst1q_f64(p, v);\n    else if (n)\n        *p = vgetq_lane_f64(v, 0);",
        f"{UNITS} -k 'no_more and neon'",
    ),
    Fault(
        "NEON: a NaN is rounded like a number in bfloat16",
        f"{SIMD}/neon.h",
        r"vbslq_u32(vceqq_f32(v, v), rounded,",
        r"vbslq_u32(FAULT ? vdupq_n_u32(~0u) : vceqq_f32(v, v), rounded,",
        f"{UNITS} -k 'to_16_bits and neon'",
    ),
    # --- vmath.h
    Fault(
        "exp is cut off before it overflows",
        f"{SIMD}/vmath.h",
        r"v32_min(v32_set1(89.0f), x)",
        r"v32_min(v32_set1(FAULT ? 88.5f : 89.0f), x)",
        f"{VMATH} -k 'dense and avx2 and exp'",
    ),
    Fault(
        "exp is cut off before its smallest values",
        f"{SIMD}/vmath.h",
        "one = v32_set1(1.0f);\n    v32 r = v32_max(v32_set1(-105.0f),",
        "one = v32_set1(1.0f);\n    v32 r = v32_max(v32_set1(FAULT ? -103.0f : -105.0f),",
        f"{VMATH} -k 'dense and avx2 and exp'",
    ),
    Fault(
        "tanh takes an entry of its tables that is not the next one",
        f"{SIMD}/vmath.h",
        r"v32_fma(a[i], v32_set1(1.71875f), v32_set1(LNRNN_TO_INTEGER))",
        r"v32_fma(a[i], v32_set1(FAULT ? 1.59375f : 1.71875f), v32_set1(LNRNN_TO_INTEGER))",
        f"{VMATH} -k 'dense and avx2 and tanh'",
    ),
    Fault(
        "sigmoid saturates too early",
        f"{SIMD}/vmath.h",
        r"v32_min(v32_set1(30.0f), x[i])",
        r"v32_min(v32_set1(FAULT ? 15.0f : 30.0f), x[i])",
        f"{VMATH} -k 'dense and avx2 and sigmoid'",
    ),
    Fault(
        "the halves of sigmoid's sum are scaled differently",
        f"{SIMD}/vmath.h",
        r"v32_fma(q[i], r[i], v32_add(p[i], scale))",
        r"v32_fma(q[i], r[i], v32_add(p[i], FAULT ? v32_set1(0x1.aaaaacp+0f) : scale))",
        f"{VMATH} -k 'dense and avx2 and sigmoid'",
    ),
    Fault(
        "tanh saturates too early",
        f"{SIMD}/vmath.h",
        r"v32_min(v32_set1(9.015f), v32_abs(x[i]))",
        r"v32_min(v32_set1(FAULT ? 8.5f : 9.015f), v32_abs(x[i]))",
        f"{VMATH} -k 'dense and avx2 and tanh'",
    ),
    Fault(
        "of two factors of a power of two one is out of range",
        f"{SIMD}/avx2.h",
        r"half = _mm256_srai_epi32(e, 1)",
        r"half = FAULT ? _mm256_srai_epi32(e, 2) : _mm256_srai_epi32(e, 1)",
        "tests/simd/test_simd.py -k 'scale and avx2'",
    ),
    Fault(
        "an entry of the upper half of a table is one of the lower half",
        f"{SIMD}/avx2.h",
        r"_mm256_permutevar8x32_ps(_mm256_loadu_ps(p + 8), k)",
        r"_mm256_permutevar8x32_ps(_mm256_loadu_ps(p + (FAULT ? 0 : 8)), k)",
        "tests/simd/test_simd.py -k 'lookup16 and avx2'",
    ),
    Fault(
        "relu of a NaN is 0",
        f"{SIMD}/vmath.h",
        r"v32_relu(v32 x) { return v32_max(v32_zero(), x); }",
        r"v32_relu(v32 x) { return FAULT ? v32_max(x, v32_zero()) : v32_max(v32_zero(), x); }",
        "tests/rnn/test_forward.py -k 'nan_shows and avx2'",
    ),
]
