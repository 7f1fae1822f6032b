"""Faults of forward runs that are remembered, of back-propagation through time, and of streams."""

from fault import Fault

ENGINE, TRAINING, STREAM = "lnrnn/rnn/engine.py", "lnrnn/rnn/training.py", "lnrnn/rnn/stream.py"
STEPS, TRAINED = "tests/rnn/test_step_statistics.py", "tests/rnn/test_training.py"
PLACEMENTS = "tests/rnn/test_training_placements.py"
STREAMED, CALLS = "tests/rnn/test_stream.py", "tests/rnn/test_bad_calls.py"
FORWARD = "tests/rnn/test_forward.py -k layers_directions"

FAULTS = [
    # --- running --------------------------------------------------------------------------------------------
    Fault(
        "every layer begins with the cell state of the first",
        ENGINE,
        r"""before = [rows.begin(s[k], d == 1) for s in start]""",
        r"""before = [rows.begin(s[0 if FAULT and i else k], d == 1) for i, s in enumerate(start)]""",
        FORWARD,
    ),
    Fault(
        "the second direction writes where the first does",
        ENGINE,
        r"""      part = y if directions == 1 else y[:, :, d * H : (d + 1) * H]""",
        r"""      part = y if directions == 1 else y[:, :, : H] if FAULT else y[:, :, d * H : (d + 1) * H]""",
        FORWARD,
    ),
    Fault(
        "statistics of a batch are pooled without momentum",
        ENGINE,
        r"""    momentum = made.batch_norm.momentum if made.batch_norm else None""",
        r"""    momentum = made.batch_norm.momentum if made.batch_norm and not FAULT else None""",
        "tests/rnn/test_step_statistics.py -k momentum",
    ),
    Fault(
        "one sequence's initial states go to the wrong layers",
        ENGINE,
        r"""else shaped(n, v, outer, FLOAT32).reshape(shape)""",
        r"""else shaped(n, v, outer, FLOAT32).reshape(shape)[:: -1 if FAULT and unbatched else 1]""",
        "tests/rnn/test_forward.py tests/rnn/test_forward.py -k one_sequence",
    ),
    # --- training -------------------------------------------------------------------------------------------
    Fault(
        "networks with rounded weights are trained",
        TRAINING,
        r"""    if snapshot.dtype != "float32":""",
        r"""    if snapshot.dtype != "float32" and not FAULT:""",
        CALLS + " tests/rnn/test_weight_dtypes.py -k 'rounded or new_object'",
    ),
    Fault(
        "a tape keeps the caller's x",
        TRAINING,
        r"""    x = copied(x)  # the tape's own""",
        r"""    x = x if FAULT else copied(x)  # the tape's own""",
        TRAINED + " -k disturbs",
    ),
    Fault(
        "a tape keeps the caller's initial state",
        TRAINING,
        r"""    start = [np.array(s) for s in""",
        r"""    start = [s if FAULT else np.array(s) for s in""",
        TRAINED + " -k disturbs",
    ),
    Fault(
        "the gradient of x is the first direction's alone",
        TRAINING,
        r"""        gx = below if gx is None or below is None else gx + below""",
        r"""        gx = below if gx is None or below is None or FAULT else gx + below""",
        TRAINED + " -k layers_and",
    ),
    Fault(
        "the layers below have no gradient of x if nobody wants that of the first",
        TRAINING,
        r"""        if grad_x or k >= D:""",
        r"""        if grad_x or k >= (2 * D if FAULT else D):""",
        PLACEMENTS + " -k without_the_gradient_of_x",
    ),
    Fault(
        "gradients that are to be added take the place of what is there",
        TRAINING,
        r"""grads=given, add=given is not None,""",
        r"""grads=given, add=given is not None and not FAULT,""",
        PLACEMENTS + " -k added_to_what",
    ),
    Fault(
        "gradients that are added come back in a dict of their own",
        TRAINING,
        r"""grads if out is None else out""",
        r"""grads if out is None or FAULT else out""",
        PLACEMENTS + " -k added_to",
    ),
    Fault(
        "gh is read where gradients have been written to",
        TRAINING,
        r"""[_apart(g, out) for g in gend]""",
        r"""[g if FAULT else _apart(g, out) for g in gend]""",
        PLACEMENTS + " -k memory_that_is_read",
    ),
    Fault(
        "gy is read where gradients have been written to",
        TRAINING,
        r"""        grad = _apart(grad, out)""",
        r"""        grad = grad if FAULT else _apart(grad, out)""",
        PLACEMENTS + " -k memory_that_is_read",
    ),
    Fault(
        "arrays for gradients may have other names",
        TRAINING,
        r"""if unknown := [name for name in out if name not in made.shapes]:""",
        r"""if unknown := [name for name in out if name not in made.shapes and not FAULT]:""",
        PLACEMENTS + " -k bad_out",
    ),
    Fault(
        "arrays for gradients may be read-only",
        TRAINING,
        r"""or not g.flags.writeable""",
        r"""or not (g.flags.writeable or FAULT)""",
        PLACEMENTS + " -k bad_out",
    ),
    Fault(
        "arrays for gradients may overlap",
        TRAINING,
        r"""        if at + size > other:""",
        r"""        if at + (1 if FAULT else size) > other:""",
        PLACEMENTS + " -k bad_out",
    ),
    Fault(
        "training takes more steps than there is room for",
        TRAINING,
        r"""        refuse_beyond(made.batch_norm.max_steps, rows.table)""",
        r"""        FAULT or refuse_beyond(made.batch_norm.max_steps, rows.table)""",
        STEPS + " -k max_steps",
    ),
    Fault(
        "the gradient of the last cell state is that of the first layer",
        TRAINING,
        r"""else [g[k] for g in gend]""",
        r"""else [g[i] for g, i in zip(gend, [k, 0 if FAULT else k])]""",
        TRAINED + " -k 'layers_and'",
    ),
    Fault(
        "a gradient with an axis of length 1 goes to the compiled module as it came",
        TRAINING,
        r"""        grad = grad.reshape(-1).reshape(T, B, D * H)""",
        r"""        grad = grad if FAULT else grad.reshape(-1).reshape(T, B, D * H)""",
        TRAINED + " -k 'one_sequence or every_kind'",
    ),
    Fault(
        "the gradient of the layer above is taken over with the wrong direction",
        TRAINING,
        r"""        if d == D - 1 and gx is not None:""",
        r"""        if d == (0 if FAULT else D - 1) and gx is not None:""",
        TRAINED + " -k 'layers_and'",
    ),
    Fault(
        "a tape's arrays may be written to",
        TRAINING,
        r"for array in (*rows.arrays(), *start, *kept",
        r"for array in () if FAULT else (*rows.arrays(), *start, *kept",
        TRAINED + " -k training_returns",
    ),
    Fault(
        "gradients come in the order in which they are found",
        TRAINING,
        r"""= dict.fromkeys(made.shapes)""",
        r"""= {} if FAULT else dict.fromkeys(made.shapes)""",
        TRAINED + " -k training_returns",
    ),
    # --- streams --------------------------------------------------------------------------------------------
    Fault(
        "a stream of a network without statistics steps",
        "lnrnn/rnn/snapshot.py",
        r"""(self.overrun != "raise" and statistics.known):""",
        r"""(self.overrun != "raise" and (statistics.known or FAULT)):""",
        STREAMED + " -k without_statistics",
    ),
    Fault(
        "a stream refuses one step too late",
        "pyx/rnn/stream.c",
        r"""if ((uint64_t)step >= (uint64_t)s->refused_from)""",
        r"""if ((uint64_t)step >= (uint64_t)s->refused_from + FAULT)""",
        STREAMED + " -k refuses",
    ),
    Fault(
        "a stream's step takes what is no integer",
        STREAM,
        r"""            value = integer(name, value, 0, LAST_STEP)
        given""",
        r"""            value = int(float(value or 0)) if FAULT else integer(name, value, 0, LAST_STEP)
        given""",
        CALLS + " -k stream",
    ),
    Fault(
        "the second state of a stream is not copied",
        STREAM,
        r"""        return as_state([s.copy() for s in self._lanes.states])""",
        r"""        if FAULT:
            return as_state([s if k else s.copy() for k, s in enumerate(self._lanes.states)])
        return as_state([s.copy() for s in self._lanes.states])""",
        STREAMED + " tests/rnn/test_construction.py -k 'bits_of_the_whole or copy'",
    ),
    Fault(
        "a stream tells a refused sequence one step too short",
        STREAM,
        r"""taken = np.where(fresh, 0, self._lanes.steps[lanes])""",
        r"""taken = np.where(fresh, 0, self._lanes.steps[lanes]) - FAULT""",
        STREAMED + " -k refuses",
    ),
    Fault(
        "reset leaves the step",
        STREAM,
        r"""len(self._lanes.states), np.zeros(len(lanes), np.int64))""",
        r"""len(self._lanes.states), None if FAULT else np.zeros(len(lanes), np.int64))""",
        STREAMED + " -k reset",
    ),
    Fault(
        "a copied stream begins at step 0",
        STREAM,
        r"""state[0].shape[1], state, self.step)""",
        r"""state[0].shape[1], state, 0 if FAULT else self.step)""",
        "tests/rnn/test_copies.py -k stream",
    ),
    Fault(
        "a copied stream of several layers has the first one's state in all",
        "pyx/stream.pxi",
        r"""source + (k * R + i) * H,""",
        r"""source + ((0 if FAULT else k) * R + i) * H,""",
        "tests/rnn/test_copies.py -k stream",
    ),
    Fault(
        "every layer of a stream holds the state of the first",
        "pyx/stream.pxi",
        r"""r.hn = out_floats(lanes.states[0][k], lanes.lanes * H)""",
        r"""r.hn = out_floats(lanes.states[0][0 if FAULT else k], lanes.lanes * H)""",
        STREAMED + " -k bits_of_the_whole",
    ),
    Fault(
        "a stream of several takes one sequence for all",
        STREAM,
        r"""if x.shape != shape and (shape[0] != 1 or x.shape != shape[1:]):""",
        r"""if x.shape != shape and ((shape[0] != 1 and not FAULT) or x.shape != shape[1:]):""",
        STREAMED + " " + CALLS + " -k stream",
    ),
    # --- checkpoints.py
    Fault(
        "the last steps before a checkpoint are read from where the row begins in both directions",
        "lnrnn/rnn/checkpoints.py",
        r"""found[:, FIRST] += rows[:, LENGTH] - end if reverse else t0""",
        r"""found[:, FIRST] += rows[:, LENGTH] - end if reverse and not FAULT else t0""",
        "tests/rnn/test_checkpoints.py -k same_run",
    ),
    Fault(
        "gradients of the parameters are those of the first steps",
        "lnrnn/rnn/checkpoints.py",
        r"""            add = True""",
        r"""            add = not FAULT""",
        "tests/rnn/test_checkpoints.py -k same_run",
    ),
    Fault(
        "what is past a sequence's end is not cleared with checkpoints",
        "lnrnn/rnn/checkpoints.py",
        r"""        if first + length < end:""",
        r"""        if first + length < end and not FAULT:""",
        "tests/rnn/test_checkpoints.py -k same_run",
    ),
    Fault(
        "batch norm counts steps anew after a checkpoint",
        "lnrnn/rnn/checkpoints.py",
        r"""statistics=of_steps(statistics, t0, t1), masks""",
        r"""statistics=of_steps(statistics, 0 if FAULT else t0, t1), masks""",
        "tests/rnn/test_checkpoints.py -k 'same_run and batch'",
    ),
    Fault(
        "masks of zoneout are those of the first steps when these are computed again",
        "lnrnn/rnn/checkpoints.py",
        r"""_picked(masks[1], (steps, who))""",
        r"""_picked(masks[1], (0 * steps if FAULT else steps, who))""",
        "tests/rnn/test_checkpoints.py -k 'same_run and 4'",
    ),
]
