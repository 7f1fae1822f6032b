"""Faults between Python and C: arguments, the memory of results, layers and streams."""

from fault import Fault

ARRAYS, BATCH, LAYER = "pyx/arrays.pxi", "pyx/batch_norm.pxi", "pyx/layer_norm.pxi"
RECURRENT, CORE, FRESH = "pyx/recurrent.pxi", "pyx/_core.pyx", "pyx/fresh.pxi"
ELEMENTWISE, FUNCTIONS = "pyx/elementwise.pxi", "tests/simd/test_vmath.py"
NORM, LAYER_INPUT = "tests/norm/test_layer_norm.py", "tests/norm/test_layer_norm_input.py"
BATCH_NORM, BATCH_INPUT = "tests/norm/test_batch_norm.py", "tests/norm/test_batch_norm_input.py"
TRAINING, FORWARD = "tests/rnn/test_training.py", "tests/rnn/test_forward.py"
PLACEMENTS = "tests/rnn/test_training_placements.py"
CHANGED, PARTS = "tests/runtime/test_changed_arrays.py", "tests/runtime/test_interrupts.py"

FAULTS = [
    # --- arrays.pxi
    Fault(
        "arrays of any layout are read as C-contiguous ones",
        ARRAYS,
        r"cnp.PyArray_CheckExact(array) and cnp.PyArray_ISCARRAY_RO(<cnp.ndarray>array)",
        r"cnp.PyArray_CheckExact(array) and (FAULT or cnp.PyArray_ISCARRAY_RO(<cnp.ndarray>array))",
        f"{LAYER_INPUT} {NORM} -k 'dtypes or (layouts and avx2)'",
    ),
    Fault(
        "an array of other axes will do",
        ARRAYS,
        r"if cnp.PyArray_DIMS(<cnp.ndarray>a)[k] != cnp.PyArray_DIMS(<cnp.ndarray>b)[k]:",
        r"if not FAULT and cnp.PyArray_DIMS(<cnp.ndarray>a)[k] != cnp.PyArray_DIMS(<cnp.ndarray>b)[k]:",
        f"{LAYER_INPUT} {BATCH_INPUT} -k bad",
    ),
    Fault(
        "out may overlap x",
        ARRAYS,
        r"or disjoint(out, x))",
        r"or FAULT or disjoint(out, x))",
        f"{NORM} -k 'overlap and avx2'",
    ),
    Fault(
        "the room on the stack is given to more than it holds",
        ARRAYS,
        r"    if n > 1536:",
        r"    if n > (1600 if FAULT else 1536):",
        f"{NORM} {BATCH_NORM} -k 'avx2 and (backward or training)'",
    ),
    Fault(
        "parameters of 16 bits are read as float32",
        ARRAYS,
        r"if (dtype != LNRNN_BFLOAT16 and dtype != LNRNN_FLOAT16) or parameter is None:",
        r"if (dtype != LNRNN_BFLOAT16 and (FAULT or dtype != LNRNN_FLOAT16)) or parameter is None:",
        "tests/norm/test_half.py -k 'same_dtype and avx2'",
        equivalent="what is not plain here is made so in Python",
    ),
    # --- batch_norm.pxi
    Fault(
        "the running variance is the biased one",
        BATCH,
        r"new *= <double>unbiased / <double>(unbiased - 1)",
        r"new *= 1.0 if FAULT else <double>unbiased / <double>(unbiased - 1)",
        f"{BATCH_NORM} -k 'running and avx2'",
    ),
    Fault(
        "running_mean may overlap running_var",
        BATCH,
        r"or not disjoint(mean, var)):",
        r"or (not disjoint(mean, var) and not FAULT)):",
        f"{BATCH_NORM} -k 'that_overlap'",
    ),
    Fault(
        "a running statistic may overlap out",
        BATCH,
        r"and disjoint(p, out))",
        r"and (disjoint(p, out) or FAULT))",
        f"{BATCH_NORM} -k overlap",
        equivalent="batch_norm has refused such an out already",
    ),
    Fault(
        "running statistics that may not be written are written",
        BATCH,
        r"p is None or (cnp.PyArray_ISWRITEABLE(<cnp.ndarray>p) and disjoint(p, x)",
        r"p is None or ((FAULT or cnp.PyArray_ISWRITEABLE(<cnp.ndarray>p)) and disjoint(p, x)",
        f"{BATCH_INPUT} -k read_only",
    ),
    Fault(
        "a running statistic in float32 forgets the momentum's other part",
        BATCH,
        r"f[i] = <float>(old * f[i] + new * batch[i])",
        r"f[i] = <float>((1 if FAULT else old) * f[i] + new * batch[i])",
        f"{BATCH_NORM} -k 'running and avx2'",
    ),
    Fault(
        "one value to a channel is trained on",
        BATCH,
        r"if (count < 2 or not updatable(mean, x, gain, bias, out)",
        r"if ((count < 2 and not FAULT) or not updatable(mean, x, gain, bias, out)",
        f"{BATCH_INPUT} -k 'one_value'",
    ),
    Fault(
        "a layer with nothing of its size takes any number of channels",
        BATCH,
        r"    if features is not None and features != b.C:",
        r"    if features is not None and features != b.C and not FAULT:",
        f"{BATCH_INPUT} -k own_number",
    ),
    # --- elementwise.pxi
    Fault(
        "elementwise functions read float64 as float32",
        ELEMENTWISE,
        r"    if not plain(x, cnp.NPY_FLOAT32) or",
        r"    if not (plain(x, cnp.NPY_FLOAT32) or (FAULT and plain(x, cnp.NPY_FLOAT64))) or",
        f"{FUNCTIONS} -k converted",
    ),
    Fault(
        "elementwise functions write to an output of any shape",
        ELEMENTWISE,
        r"(out is not None and not writes_to(out, x)):",
        r"(out is not None and not writes_to(out, x) and not (FAULT and plain(out, cnp.NPY_FLOAT32))):",
        f"{FUNCTIONS} -k bad_out",
    ),
    Fault(
        "elementwise functions leave the last element of a large array",
        ELEMENTWISE,
        r"            lnrnn_map(function, n, px, py, threads)",
        r"            lnrnn_map(function, n - FAULT, px, py, threads)",
        f"{FUNCTIONS} -k run_beside",
    ),
    # --- layer_norm.pxi
    Fault(
        "out may overlap the bias",
        LAYER,
        r"disjoint(out, gain) and disjoint(out, bias)):",
        r"disjoint(out, gain) and (FAULT or disjoint(out, bias))):",
        f"{NORM} -k 'overlap and avx2'",
    ),
    Fault(
        "the eps of RMS norm is float32's for float64 too",
        LAYER,
        r"e = DBL_EPSILON if dtype == LNRNN_FLOAT64 else FLT_EPSILON",
        r"e = DBL_EPSILON if dtype == LNRNN_FLOAT64 and not FAULT else FLT_EPSILON",
        "tests/norm/test_rms_norm.py -k avx2",
    ),
    Fault(
        "the axes of a parameter count from the first one",
        LAYER,
        r"skip = cnp.PyArray_NDIM(x) - ndim",
        r"skip = 0 if FAULT else cnp.PyArray_NDIM(x) - ndim",
        f"{NORM} -k 'forward_at and avx2'",
    ),
    Fault(
        "gradients of the bias are those of the weight",
        LAYER,
        r"rounded(kind, axes, dims, r.values + n))",
        r"rounded(kind, axes, dims, r.values + (0 if FAULT else n)))",
        f"{NORM} -k 'backward_at and avx2'",
    ),
    # --- fresh.pxi
    Fault(
        "arrays that others make get memory of ours after a large result",
        FRESH,
        "kind, 0)\n    finally:\n        PyContext_Exit(context)",
        "kind, 0)\n    finally:\n        FAULT or PyContext_Exit(context)",
        "tests/runtime/test_result_memory.py -k nothing_else",
    ),
    # --- recurrent.pxi
    Fault(
        "no interrupt is served within a call",
        RECURRENT,
        r"        PyErr_CheckSignals()",
        "        if not FAULT:\n            PyErr_CheckSignals()",
        f"{PARTS} -k 'signals_are_handled and call'",
    ),
    Fault(
        "parts have the size of the first one however long that took",
        RECURRENT,
        r"        if not fixed_part:",
        r"        if not fixed_part and not FAULT:",
        f"{PARTS} -k 'signals_are_handled and call'",
        equivalent="parts may be of any size: others only serve interrupts later on a slow machine",
    ),
    Fault(
        "the two biases of one sum are not added",
        RECURRENT,
        r"inner_bias_ih, inner_bias_hh = added(inner_bias_ih, inner_bias_hh), None",
        r"inner_bias_ih, inner_bias_hh = (inner_bias_ih if FAULT else added(inner_bias_ih,"
        r" inner_bias_hh)), None",
        f"{FORWARD} -k 'fifty and True and joint and LSTM'",
    ),
    Fault(
        "a network without norms has the bias of its hidden side alone",
        RECURRENT,
        r'sites = {"hh": (None, added(sites["ih"][1], sites["hh"][1]))}',
        r'sites = {"hh": (None, sites["hh"][1] if FAULT else added(sites["ih"][1], sites["hh"][1]))}',
        f"{FORWARD} -k 'fifty and none and LSTM'",
    ),
    Fault(
        "a layer's weights change with the shapes of the caller's arrays",
        RECURRENT,
        r"self.weights = (weight_ih[:], weight_hh[:])",
        r"self.weights = (weight_ih, weight_hh) if FAULT else (weight_ih[:], weight_hh[:])",
        CHANGED,
    ),
    Fault(
        "weights stay packed for another instruction set",
        RECURRENT,
        "            kept = self.packed\n        name = isa()\n        if kept is None or kept[0] != name:",
        "            kept = self.packed\n        name = isa()\n"
        "        if kept is None or (kept[0] != name and not FAULT):",
        f"{FORWARD} -k 'fifty and none and LSTM'",
    ),
    Fault(
        "transposed weights stay packed for another instruction set",
        RECURRENT,
        "if kept is None or kept[0] != name or len(kept) < 2 + both:",
        "if kept is None or (kept[0] != name and not FAULT) or len(kept) < 2 + both:",
        f"{TRAINING} -k 'every_size and tanh and None'",
    ),
    Fault(
        "a table may have fewer rows than steps are known",
        RECURRENT,
        r"if known > rows or overrun_row >= <ptrdiff_t>rows or overrun_row < -1:",
        r"if not FAULT and (known > rows or overrun_row >= <ptrdiff_t>rows or overrun_row < -1):",
        "tests/rnn/test_step_statistics.py",
        equivalent="it checks once more what Python keeps to in every call",
    ),
    Fault(
        "sequences are not dealt out to groups with their lengths",
        RECURRENT,
        r"""    found[places] = rows
""",
        r"""    found[places] = rows
    if FAULT: found[:, 2] = rows[:, 2]
""",
        "tests/rnn/test_equal_bits.py -k 'threads and avx2 and tasks'",
    ),
    Fault(
        "lengths that rise are taken",
        RECURRENT,
        r"""or (i and row.length > r.rows[i - 1].length)):""",
        r"""or (i and not FAULT and row.length > r.rows[i - 1].length)):""",
        f"{CHANGED} -k tape",
    ),
    Fault(
        "an order that names a sequence twice is taken",
        RECURRENT,
        r"""row.state >= states or seen[row.state] or""",
        r"""row.state >= states or (seen[row.state] and not FAULT) or""",
        f"{CHANGED} -k tape",
    ),
    Fault(
        "a tape's order is read while others may change it",
        RECURRENT,
        r"rows = cnp.PyArray_NewCopy(<cnp.ndarray?>rows, cnp.NPY_CORDER)",
        r"rows = rows if FAULT else cnp.PyArray_NewCopy(<cnp.ndarray?>rows, cnp.NPY_CORDER)",
        f"{CHANGED} -k within_a_call",
    ),
    Fault(
        "the gradient of the last c is not taken",
        RECURRENT,
        r"""floats(ghn, states * H), floats(gcn, states * H)""",
        r"""floats(ghn, states * H), floats(None if FAULT else gcn, states * H)""",
        f"{TRAINING} -k 'every_size and LSTM and None'",
    ),
    Fault(
        "a bias gets the gradient of its gain",
        RECURRENT,
        "return &g.site[index].gain if gain else &g.site[index].bias",
        "return &g.site[index].gain if gain or FAULT else &g.site[index].bias",
        f"{TRAINING} -k 'every_size and tanh and layer'",
    ),
    Fault(
        "both inner biases have the gradient of that of W x",
        RECURRENT,
        "1 if index > LNRNN_SITES and self.config.inner_hh != NULL else 0",
        "1 if index > LNRNN_SITES and self.config.inner_hh != NULL and not FAULT else 0",
        f"{PLACEMENTS} -k 'every_size and inner'",
    ),
    Fault(
        "gradients of gains and biases are added to what is in new memory",
        RECURRENT,
        "            add = False\n",
        "            add = FAULT\n",
        f"{TRAINING} -k 'every_size and tanh'",
    ),
    Fault(
        "gradients of gains and biases take the place of those that they are added to",
        RECURRENT,
        "to[i] = to[i] + <float>values[i] if add else <float>values[i]",
        "to[i] = to[i] + <float>values[i] if add and not FAULT else <float>values[i]",
        f"{PLACEMENTS} -k added_to_what",
    ),
    Fault(
        "a stream keeps the weights that were packed for another instruction set",
        "pyx/stream.pxi",
        r"""            weights = layer.pack()
""",
        r"""            weights = self.kept[k] if FAULT and self.kept is not None else layer.pack()
""",
        "tests/rnn/test_lanes.py -k instruction_set",
    ),
    Fault(
        "a stream keeps to the number of threads of its beginning",
        "pyx/stream.pxi",
        r"""found.rows != rows or found.threads != threads or""",
        r"""found.rows != rows or (found.threads != threads and not (FAULT and found.rows == rows)) or""",
        "tests/rnn/test_stream.py -k threads",
    ),
    Fault(
        "all layers of a stream but the last write to where the last does",
        "pyx/rnn/stream.c",
        r"""    s->calls[s->layers - 1].y = y;
""",
        r"""    for (size_t k = 0; k < s->layers; k++)
        if (FAULT || k == s->layers - 1)
            s->calls[k].y = y;
""",
        "tests/rnn/test_stream.py -k 'gives_the_bits and avx2'",
    ),
    Fault(
        "a state that is set to None stays as it is",
        "pyx/stream.pxi",
        r"""memset(to + (k * self.lanes + chosen[i]) * H, 0, H * sizeof(float))""",
        r"""memset(to + (k * self.lanes + chosen[i]) * H, 0, 0 if FAULT else H * sizeof(float))""",
        "tests/rnn/test_stream.py -k reset",
    ),
    # --- _core.pyx
    Fault(
        "a shortage of threads is told again and again",
        CORE,
        "    if told:\n        return 0",
        "    if told and not FAULT:\n        return 0",
        "tests/runtime/test_threads.py -k 'some_threads or no_memory or every_calling'",
    ),
    Fault(
        "arrays that may not be written are written",
        CORE,
        "    if (cnp.PyArray_TYPE(a) != kind or <size_t>cnp.PyArray_SIZE(a) != size or not"
        " cnp.PyArray_ISCARRAY_RO(a)\n"
        "            or (writable and not cnp.PyArray_ISWRITEABLE(a))):",
        "    if (cnp.PyArray_TYPE(a) != kind or <size_t>cnp.PyArray_SIZE(a) != size or not"
        " cnp.PyArray_ISCARRAY_RO(a)\n"
        "            or (writable and not FAULT and not cnp.PyArray_ISWRITEABLE(a))):",
        f"{CHANGED} tests/simd/test_vmath.py",
        equivalent="it checks once more what Python has: no public call gets here with such an array",
    ),
    Fault(
        "an array of another size will do",
        CORE,
        r"or shape[0] != n0 or shape[1] != n1",
        r"or shape[0] != n0 or (shape[1] != n1 and not FAULT)",
        f"{CHANGED} -k tape",
        equivalent="it checks once more what Python has: no public call gets here with such an array",
    ),
    Fault(
        "a strided array's second stride is that of its first axis",
        CORE,
        r"s1[0] = step[1] // 4",
        r"s1[0] = step[0 if FAULT and n0 == 1 else 1] // 4",
        f"{FORWARD} -k every_kind",
    ),
]
