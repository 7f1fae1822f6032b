#!/bin/bash
# Builds the fuzzers of tests/fuzz into $OUT, with their seeds. ClusterFuzzLite and OSS-Fuzz set all variables.
# `make campaign NAME=reader` runs this script too, and uses its fuzzer in C.
set -eu
cd "$SRC/lnrnn"
made=$(mktemp -d)

words="-std=gnu11 -ffunction-sections -Iinclude -Ipyx"
for name in json description configuration model_file; do
    # shellcheck disable=SC2086 - lists of words
    $CC $CFLAGS $words -c "pyx/file/$name.c" -o "$made/$name.o"
done
# config.c defines the table of cells. Its functions need the kernels, and the linker removes them, if no sanitizer refers to them.
# shellcheck disable=SC2086
$CC $words -O1 -c pyx/rnn/config.c -o "$made/config.o"
# shellcheck disable=SC2086
$CC $CFLAGS $words -c tests/fuzz/fuzz_model_file.c -o "$made/fuzz.o"
# shellcheck disable=SC2086
$CC $CFLAGS $LIB_FUZZING_ENGINE "$made"/*.o -Wl,--gc-sections -lm -o "$OUT/fuzz_model_file"
cp tests/fuzz/*.dict "$OUT"

# Images for Python have this command.
if command -v compile_python_fuzzer; then
    env -u CFLAGS -u CXXFLAGS pip3 install ".[onnx,test]"  # Python cannot load a library with a sanitizer
    python3 tests/fuzz/seeds.py "$made/seeds"
    for seeds in "$made"/seeds/*; do
        zip -jqr "$OUT/$(basename "$seeds")_seed_corpus.zip" "$seeds"
    done
    for fuzzer in tests/fuzz/fuzz_*.py; do
        compile_python_fuzzer "$fuzzer" --paths tests/support --collect-all lnrnn --collect-all onnx --collect-all onnx_ir
    done
fi
