"""Faults of dropout, zoneout, and resets in training and calibration."""

from fault import Fault

DROPOUT, SPECS, ENGINE = "lnrnn/rnn/dropout.py", "lnrnn/rnn/specs.py", "lnrnn/rnn/engine.py"
TRAINING, CALIBRATION = "lnrnn/rnn/training.py", "lnrnn/rnn/calibration.py"
SNAPSHOT, FILES, LOOP = "lnrnn/rnn/snapshot.py", "lnrnn/rnn/file_format.py", "lnrnn/reference/time_loop.py"
ZONEOUT, FORWARD, SPLIT = "pyx/rnn/zoneout.c", "pyx/rnn/forward.c", "pyx/rnn/split.c"
ROWS, BACKWARD = "pyx/rnn/rows.h", "pyx/rnn/backward_steps.c"
DROPS, TRAINED = "tests/rnn/test_dropout.py", "tests/rnn/test_dropout_training.py"
CALLS, OF_REFERENCE = "tests/rnn/test_zoneout.py", "tests/reference/test_reference_dropout.py"
RESETS = "tests/rnn/test_resets.py -k 'parts or calibration or batches'"

FAULTS = [
    # --- what is drawn --------------------------------------------------------------------------------------
    Fault(
        "all layers drop the same",
        DROPOUT,
        r"""np.random.SeedSequence(entropy, spawn_key=key)""",
        r"""np.random.SeedSequence(entropy, spawn_key=key[:1] if FAULT else key)""",
        DROPS,
    ),
    Fault(
        "a mask begins again after so many numbers",
        DROPOUT,
        r"""        words = numbers.random_raw(""",
        r"""        words = (np.random.Philox(1) if FAULT and at else numbers).random_raw(""",
        DROPS,
    ),
    Fault(
        "half the numbers of a stream are left out",
        DROPOUT,
        r"""        np.less(words[: part.size], below""",
        r"""        np.less((np.repeat(words[::2], 2) if FAULT else words)[: part.size], below""",
        DROPS,
    ),
    Fault(
        "what stays is not scaled",
        DROPOUT,
        r"""FLOAT32.type(1 / (1 - rate))""",
        r"""FLOAT32.type(1 if FAULT else 1 / (1 - rate))""",
        DROPS,
    ),
    Fault(
        "what goes between layers is not scaled",
        DROPOUT,
        r"""    return Masks(inputs, between, 1 / (1 - spec.between), states, pairs)""",
        r"""    return Masks(inputs, between, 1.0 if FAULT else 1 / (1 - spec.between), states, pairs)""",
        DROPS + " " + TRAINED,
    ),
    Fault(
        "h and c are kept together",
        DROPOUT,
        r"""kept(ZONEOUT_C, p, rates[1])""",
        r"""kept(ZONEOUT_H if FAULT else ZONEOUT_C, p, rates[1])""",
        DROPS,
    ),
    Fault(
        "outputs are dropped before the first layer, too",
        DROPOUT,
        r"""if spec.between and n else None""",
        r"""if spec.between and (n or FAULT) else None""",
        DROPS,
    ),
    Fault(
        "the mask between layers is forgotten where there is one of inputs",
        DROPOUT,
        r"""                x = out
""",
        r"""                x = x if FAULT else out
""",
        TRAINED,
    ),
    Fault(
        "fresh entropy is always the same",
        DROPOUT,
        r"""    entropy = np.random.SeedSequence(entropy).entropy""",
        r"""    entropy = 0 if FAULT and entropy is None else np.random.SeedSequence(entropy).entropy""",
        DROPS,
    ),
    Fault(
        "a rate of 1 is a rate",
        SPECS,
        r"""    return DropoutSpec(number("dropout", dropout, 0, below=1))""",
        r"""    return DropoutSpec(min(number("dropout", dropout, 0, 1) if FAULT else number("dropout", dropout, 0, below=1), 0.99))""",  # noqa: E501
        DROPS,
    ),
    Fault(
        "a pair of rates is taken where there is no c",
        SPECS,
        r"""        if cell.states == 1 or len(zoneout) != 2:""",
        r"""        if (cell.states == 1 and not FAULT) or len(zoneout) != 2:""",
        CALLS,
    ),
    # --- where it goes --------------------------------------------------------------------------------------
    Fault(
        "outputs are dropped for the recurrence as well",
        ENGINE,
        r"""            x = x if k == 0 else np.empty_like(whole)""",
        r"""            x = x if k == 0 or FAULT else np.empty_like(whole)""",
        TRAINED,
    ),
    Fault(
        "gx does not go through the mask of the inputs",
        TRAINING,
        r"""        if d == 0 and gx is not None and masks is not None""",
        r"""        if d == 0 and gx is not None and not FAULT and masks is not None""",
        DROPS + " " + TRAINED,
    ),
    Fault(
        "zoneout is no part of the fingerprint",
        SNAPSHOT,
        r"""(self.zoneout,) if self.zoneout else ()""",
        r"""(self.zoneout,) if self.zoneout and not FAULT else ()""",
        CALLS,
    ),
    Fault(
        "zoneout is not saved",
        FILES,
        r"""    if snapshot.zoneout:""",
        r"""    if snapshot.zoneout and not FAULT:""",
        CALLS,
    ),
    Fault(
        "resets of a batch are taken for another batch's sequences",
        CALIBRATION,
        r"""            fresh[: min(len(part), T), at : at + len(n)] = resets[:T]""",
        r"""            fresh[: min(len(part), T), 0 if FAULT else at :][:, : len(n)] = resets[:T]""",
        RESETS,
    ),
    Fault(
        "there is room for statistics of whole sequences alone",
        CALIBRATION,
        r"""    made, T, B = snapshot.architecture, rows.longest, x.shape[1]""",
        r"""    made, T, B = snapshot.architecture, len(x) if FAULT else rows.longest, x.shape[1]""",
        RESETS,
    ),
    # --- the C ----------------------------------------------------------------------------------------------
    Fault(
        "of a state that is kept by a rate the new part is not scaled",
        ZONEOUT,
        r"""    const float rest = 1 - rate;""",
        r"""    const float rest = FAULT ? 1 : 1 - rate;""",
        CALLS,
    ),
    Fault(
        "zoneout keeps what it should make new",
        ZONEOUT,
        r"""            now[i] = mask[i] ? was : is;""",
        r"""            now[i] = !mask[i] == !!FAULT ? was : is;""",
        TRAINED,
    ),
    Fault(
        "the mask of a reversed sequence is read from its other end",
        ROWS,
        r"""    return masks ? masks + at_step(r, i, t) * column""",
        r"""    return masks ? masks + (FAULT ? (ptrdiff_t)t : at_step(r, i, t)) * column""",
        TRAINED,
    ),
    Fault(
        "a mask of states is that of the row and not of its sequence",
        ROWS,
        r"""    return r->masks.state + (size_t)r->rows[i].sequence * r->config->H;""",
        r"""    return r->masks.state + (FAULT ? i % r->masks.sequences : (size_t)r->rows[i].sequence) * r->config->H;""",  # noqa: E501
        TRAINED,
    ),
    Fault(
        "masked states are packed where they are not",
        FORWARD,
        r"""            lnrnn_mask_rows(r, r0 + i, n, h_prev, m->masked);""",
        r"""            lnrnn_mask_rows(r, FAULT ? r0 : r0 + i, n, h_prev, m->masked);""",
        TRAINED,
    ),
    Fault(
        "the tape keeps the c before zoneout",
        FORWARD,
        r"""        if (record && c->zoneout_c > 0)""",
        r"""        if (record && c->zoneout_c > 0 && !FAULT)""",
        TRAINED,
    ),
    Fault(
        "threads that divide the units keep the new h for the old",
        SPLIT,
        r"""    for (size_t i = 0; c->zoneout_h > 0 && i < rows->n; i++)""",
        r"""    for (size_t i = 0; c->zoneout_h > 0 && !FAULT && i < rows->n; i++)""",
        CALLS,
    ),
    Fault(
        "threads that divide the units keep the new c for the old",
        SPLIT,
        r"""    for (size_t i = 0; c->zoneout_c > 0 && i < rows->n; i++)""",
        r"""    for (size_t i = 0; c->zoneout_c > 0 && !FAULT && i < rows->n; i++)""",
        CALLS,
    ),
    Fault(
        "the gradient of a state that is kept goes through the step too",
        ZONEOUT,
        r"""            g[u] = mask[u] ? 0 : g[u];""",
        r"""            g[u] = mask[u] && !FAULT ? 0 : g[u];""",
        TRAINED,
    ),
    Fault(
        "the gradient of a state that is kept does not go past the step",
        ZONEOUT,
        r"""            held[u] = mask[u] ? g[u] : 0;""",
        r"""            held[u] = mask[u] && !FAULT ? g[u] : 0;""",
        TRAINED,
    ),
    Fault(
        "the gradient of z h is lost under a mask of the states",
        ZONEOUT,
        r"""            gh[u] = mask[u] * g[u] + (add ? gh[u] : 0);""",
        r"""            gh[u] = mask[u] * g[u] + (add && !FAULT ? gh[u] : 0);""",
        TRAINED,
    ),
    Fault(
        "the gradient of W_hh is of the states without their mask",
        BACKWARD,
        r"""            if (r->masks.state)
""",
        r"""            if (r->masks.state && !FAULT)
""",
        TRAINED,
    ),
    Fault(
        "the norm of c goes back from the c that is carried",
        BACKWARD,
        r"""    if (carry || zoned) {""",
        r"""    if (carry || (zoned && !FAULT)) {""",
        TRAINED,
    ),
    Fault(
        "u of a carried c is the c after zoneout",
        BACKWARD,
        r"""    else if (!carry || zoned) /*""",
        r"""    else if (!carry || (zoned && !FAULT)) /*""",
        TRAINED,
    ),
    # --- the reference --------------------------------------------------------------------------------------
    Fault(
        "the reference's zoneout of a reversed sequence is read from its start",
        LOOP,
        r"""None if d is None else reverse_sequences(d, lengths) for d""",
        r"""None if d is None else d if FAULT else reverse_sequences(d, lengths) for d""",
        OF_REFERENCE,
    ),
    Fault(
        "the reference's gradient of what zoneout keeps is lost",
        LOOP,
        r"""            whole[s.alive] = part + kept
""",
        r"""            whole[s.alive] = part + (0 if FAULT else kept)
""",
        OF_REFERENCE,
    ),
]
