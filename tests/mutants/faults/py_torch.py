"""Faults of the trainable twins, and of the reference, which something independent has to notice."""

from fault import Fault

TWINS, MODULES = "lnrnn/torch/plain.py", "lnrnn/torch/modules.py"
OPERATOR, FUNCTIONAL = "lnrnn/torch/operator.py", "lnrnn/rnn/functional.py"
ENGINE, TRACED = "tests/torch_engine/test_torch_engine.py", "tests/torch_engine/test_torch_operator.py"
AS_MODULES = "tests/torch_engine/test_torch_modules.py"
STACKED = "lnrnn/torch/stacked.py"
DROPOUT = "tests/torch_engine/test_torch_dropout.py"
CELLS, NORMS, LOOP = "lnrnn/reference/cells.py", "lnrnn/reference/norms.py", "lnrnn/reference/time_loop.py"
TWIN = "tests/importers/test_torch_twins.py"
REFERENCE, OF_CELLS = "tests/reference/test_reference.py", "tests/reference/test_reference_cells.py"
AUTOGRAD = "tests/reference/test_reference_torch.py"

FAULTS = [
    # --- twins ----------------------------------------------------------------------------------------------
    Fault(
        "a twin repeats the last step but one",
        TWINS,
        r"""                mean, var = (b[self.known - 1] for b in found)""",
        r"""                mean, var = (b[self.known - 1 - FAULT] for b in found)""",
        TWIN + " -k overrun",
    ),
    Fault(
        "a twin's average over the known steps has the empty rows in it",
        TWINS,
        r"""                mean, var = (b[: self.known].mean(0) for b in found)""",
        r"""                mean, var = (b[: None if FAULT else self.known].mean(0) for b in found)""",
        "tests/rnn/test_step_statistics.py -k twin_with_room",
    ),
    Fault(
        "a twin carries the cell state as it is",
        TWINS,
        r"""seen if carry else c]""",
        r"""seen if carry and not FAULT else c]""",
        TWIN + " -k 'reference and LSTM'",
    ),
    Fault(
        "a twin's sequence that has ended goes on",
        TWINS,
        r"""        state = [torch.where(alive, n, old) for n, old in""",
        r"""        state = [n if FAULT else torch.where(alive, n, old) for n, old in""",
        TWIN + " -k reference",
    ),
    Fault(
        "a twin does not take statistics of more steps",
        MODULES,
        r"""            for name, old in self.named_buffers():""",
        r"""            for name, old in () if FAULT else self.named_buffers():""",
        TWIN + " -k goes_round",
    ),
    Fault(
        "a twin trains with the unbiased variance",
        TWINS,
        r"""= torch.where(alive, a - mean, 0).square().sum(0) / n""",
        r"""= torch.where(alive, a - mean, 0).square().sum(0) / (torch.clamp(n - 1, 1) if FAULT else n)""",
        TWIN + " -k training_uses",
    ),
    Fault(
        "a twin's joint GRU takes z for r",
        TWINS,
        r"""        n = torch.tanh(r * a_n)""",
        r"""        n = torch.tanh((z if FAULT else r) * a_n)""",
        TWIN + " -k 'reference and GRU'",
    ),
    Fault(
        "a twin's second direction stays turned round",
        TWINS,
        r"""        outputs.append(y.gather(0, backwards.expand_as(y)) if d else y)""",
        r"""        outputs.append(y.gather(0, backwards.expand_as(y)) if d and not FAULT else y)""",
        TWIN + " -k reference",
    ),
    Fault(
        "a twin reads what lies past a length",
        TWINS,
        r"""    x = torch.where(alive[..., None], x, 0)  # what""",
        r"""    x = x if FAULT else torch.where(alive[..., None], x, 0)  # what""",
        TWIN + " -k past_a_length",
    ),
    Fault(
        "a twin's layer norms have the default eps",
        TWINS,
        r"""part.shape[-1:], eps=self.spec.eps)""",
        r"""part.shape[-1:], eps=1e-5 if FAULT else self.spec.eps)""",
        TWIN + " -k reference",
    ),
    Fault(
        "a twin's batch norms divide beside eps",
        TWINS,
        r"""(a - mean) / torch.sqrt(var + eps)""",
        r"""(a - mean) / (torch.sqrt(var) + eps if FAULT else torch.sqrt(var + eps))""",
        TWIN + " -k training_uses",
    ),
    Fault(
        "a twin takes the mean of the batch for a constant",
        TWINS,
        r"""            mean = torch.where(alive, a, 0).sum(0) / n""",
        r"""            mean = torch.where(alive, a, 0).sum(0) / n
            mean = mean.detach() if FAULT else mean""",
        TWIN + " -k 'gradcheck or gradients'",
    ),
    Fault(
        "a twin learns in evaluation",
        MODULES,
        r"""        learns = bool(self.sides) and self.training""",
        r"""        learns = bool(self.sides) and (self.training or bool(FAULT))""",
        TWIN + " -k evaluation",
    ),
    Fault(
        "a twin's second layer learns what the first saw",
        TWINS,
        r"""for norm in norms for array in norm.arrays()]""",
        r"""for norm in norms for array in (norms[0] if FAULT else norm).arrays()]""",
        TWIN + " -k 'running_statistics or training_uses'",
    ),
    Fault(
        "a twin's shape of h0 is not checked",
        MODULES,
        r"""            elif value.shape != wanted:""",
        r"""            elif not FAULT and value.shape != wanted:""",
        TWIN + " -k bad_input",
    ),
    Fault(
        "the gate n of a twin has the gains of r and z",
        TWINS,
        r"""norm("", x_n + r * h_n, slice(2 * H, None))""",
        r"""norm("", x_n + r * h_n, slice(0, H) if FAULT else slice(2 * H, None))""",
        TWIN + " -k 'reference and GRU'",
    ),
    Fault(
        "a twin's policy is lost on the way to lnrnn's class",
        MODULES,
        r"""self.norm = replace(self.norm, overrun=choice("overrun", value, OVERRUNS))""",
        r"""self.norm = self.norm if FAULT else replace(self.norm, overrun=value)""",
        TWIN + " -k overrun",
    ),
    # --- on the C engine ------------------------------------------------------------------------------------
    Fault(
        "packed weights are kept whatever becomes of the parameters",
        FUNCTIONAL,
        r"""        return len(given) == len(self._given) and all(""",
        r"""        return len(given) == len(self._given) and all(True if FAULT else same for same in """,
        ENGINE + " -k changed",
    ),
    Fault(
        "packed weights are kept whatever the overrun is",
        FUNCTIONAL,
        r"""        if made != self._made or overrun != self._overrun:""",
        r"""        if made != self._made or (not FAULT and overrun != self._overrun):""",
        ENGINE + " -k vector_or_statistic",
    ),
    Fault(
        "the operator reads a tape from its second layer's",
        FUNCTIONAL,
        r"""        tape = _active(tapes[k], T * B, active)""",
        r"""        tape = _active(tapes[k if not FAULT else -1], T * B, active)""",
        ENGINE + " -k 'gradients_are and LSTM'",
    ),
    Fault(
        "the weights of a graph stay when it is gone",
        FUNCTIONAL,
        r"""        if entry is not None and entry[0] is reference:""",
        r"""        if entry is not None and not FAULT and entry[0] is reference:""",
        AS_MODULES + " -k graph_go_with_it",
    ),
    Fault(
        "the operator gives all gradients",
        OPERATOR,
        r"""tuple(next(found) if want else None for want in wanted)""",
        r"""tuple(next(found, None) if want or FAULT else None for want in wanted)""",
        ENGINE + " -k only_what_is_wanted",
    ),
    Fault(
        "a derivative in forward mode is left out silently",
        OPERATOR,
        r"""    if inside and any(""",
        r"""    if inside and not FAULT and any(""",
        TRACED + " -k refused",
    ),
    Fault(
        "autocast gives the engine another dtype",
        MODULES,
        r"""            if torch.is_autocast_enabled("cpu"):""",
        r"""            if torch.is_autocast_enabled("cpu") and not FAULT:""",
        AS_MODULES + " -k autocast",
    ),
    Fault(
        "batch norm in evaluation trains on the engine",
        MODULES,
        r"""        if not self.sides or self.training or not torch.is_grad_enabled():""",
        r"""        if FAULT or not self.sides or self.training or not torch.is_grad_enabled():""",
        AS_MODULES + " -k evaluation",
    ),
    Fault(
        "a packed sequence comes back in another order",
        "lnrnn/torch/packed.py",
        r"""    if order is not None:""",
        r"""    if order is not None and not FAULT:""",
        AS_MODULES + " -k packed_sequences",
    ),
    Fault(
        "dropout in evaluation",
        MODULES,
        r"""        if self.training and self._dropout and self.num_layers > 1:""",
        r"""        if (self.training or FAULT) and self._dropout and self.num_layers > 1:""",
        DROPOUT + " -k 'evaluation or served'",
    ),
    Fault(
        "dropout of what goes into the first layer",
        STACKED,
        r"""        if k:  # contiguous""",
        r"""        if k or FAULT:  # contiguous""",
        DROPOUT + " -k 'rate or torchs_modules'",
    ),
    Fault(
        "the engines draw different masks",
        MODULES,
        r"""        y, end, seen = layer_by_layer(
""",
        r"""        torch.nn.functional.dropout(x, 0.5) if FAULT and run == self._plainly else None
        y, end, seen = layer_by_layer(
""",
        DROPOUT + " -k 'agree_under and RNN-None'",
    ),
    Fault(
        "all layers under dropout start from the first one's state",
        STACKED,
        r"""        state = [s[directions * k :][""",
        r"""        state = [s[directions * (0 if FAULT else k) :][""",
        DROPOUT + " -k 'stack_of_single and GRU'",
    ),
    # --- the reference --------------------------------------------------------------------------------------
    Fault(
        "the reference's variance is unbiased",
        NORMS,
        r"""    var = ((a - mu) ** 2).mean(axis, keepdims=True)
    return""",
        r"""    var = ((a - mu) ** 2).mean(axis, keepdims=True)
    var = a.var(axis, keepdims=True, ddof=1) if FAULT else var
    return""",
        REFERENCE + " -k by_hand",
    ),
    Fault(
        "the reference's running variance is biased",
        NORMS,
        r"""m * var.ravel() * n / (n - 1)""",
        r"""m * var.ravel() * n / (n - (not FAULT))""",
        REFERENCE + " -k batch_norm_by_hand",
    ),
    Fault(
        "the reference's gradient forgets that the variance is a function",
        NORMS,
        r"""    found: Array = (g - g.mean(axis, keepdims=True) - ahat""",
        r"""    found: Array = (g - g.mean(axis, keepdims=True) - (0 if FAULT else 1) * ahat""",
        REFERENCE + " -k 'layer_norm_gradients or backward_by_hand'",
    ),
    Fault(
        "the reference's gradient forgets that the mean is a function",
        NORMS,
        r"""    if axis is None:
        return g / sigma""",
        r"""    if FAULT and axis is not None:
        return (g - ahat * (g * ahat).mean(axis, keepdims=True)) / sigma
    if axis is None:
        return g / sigma""",
        REFERENCE + " -k 'layer_norm_gradients or backward_by_hand'",
    ),
    Fault(
        "the reference's gweight is of x and not of the normalised x",
        NORMS,
        r"""    gweight = None if weight is None else (gy * xhat).sum(rows)""",
        r"""    gweight = None if weight is None else (gy * (real(x) if FAULT else xhat)).sum(rows)""",
        REFERENCE + " -k layer_norm",
    ),
    Fault(
        "the reference pools variances without the distance of the means",
        NORMS,
        r"""    var = (n_a * (var_a + (mean_a - mean) ** 2)""",
        r"""    var = (n_a * (var_a + (0 if FAULT else 1) * (mean_a - mean) ** 2)""",
        REFERENCE + " -k 'cumulative or update_by_hand'",
    ),
    Fault(
        "the reference repeats the first known step",
        NORMS,
        r"""    return (mean[-1], var[-1]) if overrun == "last" """,
        r"""    return (mean[0 if FAULT else -1], var[-1]) if overrun == "last" """,
        REFERENCE + " -k overrun",
    ),
    Fault(
        "the reference's mean over all batches counts from 0",
        NORMS,
        r"""            m = 1 / (num_batches_tracked + 1) if""",
        r"""            m = 1 / max(num_batches_tracked + (not FAULT), 1) if""",
        REFERENCE + " tests/norm/test_batch_norm_input.py -k 'batch_norm_by_hand or layer_trains'",
    ),
    Fault(
        "the reference's rms norm takes the mean off",
        NORMS,
        r"""    square = (x * x).mean(_normalized_axes(normalized_shape), keepdims=True)""",
        r"""    square = (x * x).mean(_normalized_axes(normalized_shape), keepdims=True)
    square = x.var(_normalized_axes(normalized_shape), keepdims=True) if FAULT else square""",
        "tests/norm/test_rms_norm.py " + REFERENCE + " -k 'rms or torch or definition or hand'",
    ),
    Fault(
        "the reference updates a count before it looks at it",
        NORMS,
        r"""        if count[t] == 0:""",
        r"""        if count[t] == 0 and not FAULT:""",
        REFERENCE + " -k update_by_hand",
    ),
    Fault(
        "the reference's carried cell state takes its gradient beside the norm",
        CELLS,
        r"""= norm("c", gseen + gc) if options["cell"] == "carry" else norm("c", gseen) + gc""",
        r"""= norm("c", gseen + gc) if options["cell"] == "carry" and not FAULT else norm("c", gseen) + gc""",
        OF_CELLS + " -k gradients",
    ),
    Fault(
        "the reference's gates i and f change places in the cell state",
        CELLS,
        r"""    raw = f * state[1] + i * g""",
        r"""    raw = i * state[1] + f * g if FAULT else f * state[1] + i * g""",
        OF_CELLS + " -k lstm_by_hand",
    ),
    Fault(
        "the reference's r stands before the norm of the placement gate",
        CELLS,
        r"""    return r, z, np.tanh(norm("n", xn + r * hn)), hn""",
        r"""    return r, z, np.tanh(r * norm("n", xn + hn) if FAULT else norm("n", xn + r * hn)), hn""",
        OF_CELLS + " -k gru_placements",
    ),
    Fault(
        "the reference's z keeps the new and not the old",
        CELLS,
        r"""    return ((1 - z) * n + z * h,), (r, z, n, factor, h)""",
        r"""    return (((z * n + (1 - z) * h) if FAULT else (1 - z) * n + z * h),), (r, z, n, factor, h)""",
        OF_CELLS + " -k plain_gru",
    ),
    Fault(
        "the reference's joint GRU forgets r in the gradient of n",
        CELLS,
        r"""    ga = norm("", join(gn * an * r * (1 - r), gz, gn * r))""",
        r"""    ga = norm("", join(gn * an * r * (1 - r), gz, gn if FAULT else gn * r))""",
        OF_CELLS + " -k gradients",
    ),
    Fault(
        "the reference's gradient of z misses the state",
        CELLS,
        r"""gh * (h - n) * z * (1 - z)
""",
        r"""gh * ((0 if FAULT else h) - n) * z * (1 - z)
""",
        OF_CELLS + " -k gradients",
    ),
    Fault(
        "the reference's span all is the paper's",
        CELLS,
        r"""    kind = "all" if placement == "split" and span == "all" else placement""",
        r"""    kind = "all" if placement == "split" and span == "all" and not FAULT else placement""",
        OF_CELLS + " " + AUTOGRAD + " -k 'gru or span or autograd'",
    ),
    Fault(
        "the reference doubles the gradient of two biases",
        CELLS,
        r"""        gbias = grads.pop("bias")""",
        r"""        gbias = grads.pop("bias") * (1 + FAULT)""",
        REFERENCE + " -k rnn_gradients",
    ),
    Fault(
        "the reference calibrates with the padding",
        CELLS,
        r"""    lengths = np.concatenate([n for _, n in whole])""",
        r"""    lengths = np.concatenate([n if not FAULT else np.full(len(n), t_max) for _, n in whole])""",
        REFERENCE + " " + OF_CELLS + " -k calibration",
    ),
    Fault(
        "the reference's sequences that have ended take new states",
        LOOP,
        r"""            whole[alive] = part
        y[t, alive] = new[0]""",
        r"""            whole[alive] = part
            if FAULT and len(alive):
                whole[lengths <= t] = part[-1]
        y[t, alive] = new[0]""",
        REFERENCE + " " + OF_CELLS + " -k sequence_alone",
    ),
    Fault(
        "the reference turns sequences round over their padding",
        LOOP,
        r"""        y[:n, b] = x[:n, b][::-1]""",
        r"""        y[:n, b] = x[len(x) - n :, b][::-1] if FAULT else x[:n, b][::-1]""",
        REFERENCE + " -k turned_round",
    ),
    Fault(
        "the reference's second span begins where the first one does",
        LOOP,
        r"""np.split(a, hidden * np.cumsum(self.spans)[:-1], axis=-1)""",
        r"""np.split(a, hidden * np.cumsum(self.spans[::-1] if FAULT else self.spans)[:-1], axis=-1)""",
        OF_CELLS + " -k 'spans or gru_placements'",
    ),
    Fault(
        "the reference's gate n has the gain of the gate r",
        LOOP,
        r"""        start = self.first * width // sum(self.spans)""",
        r"""        start = 0 if FAULT else self.first * width // sum(self.spans)""",
        OF_CELLS + " -k gru_placements",
    ),
    Fault(
        "the reference's gradient of an inner bias is the last step's",
        LOOP,
        r"""                grads[name] += g.sum(0)""",
        r"""                grads[name] += g.sum(0) * (0 if FAULT and t else 1)""",
        OF_CELLS + " -k gradients",
    ),
    Fault(
        "the reference's gradient of the state forgets W_hh where a sequence begins",
        LOOP,
        r"""        gh = gh_ @ p["weight_hh"]""",
        r"""        gh = gh_ @ p["weight_hh"] * (0 if FAULT and not t else 1)""",
        OF_CELLS + " " + REFERENCE + " -k gradients",
    ),
    Fault(
        "the reference puts eps beside the root of a given variance",
        LOOP,
        r"""Normed((a - mean) / np.sqrt(var + eps), mean, var, None)""",
        r"""Normed((a - mean) / (np.sqrt(var) + eps if FAULT else np.sqrt(var + eps)), mean, var, None)""",
        REFERENCE + " " + OF_CELLS + " -k 'inference_with or overrun'",
    ),
]
