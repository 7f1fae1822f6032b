"""Faults of the demos: training, networks, numbers that follow from answers, and how studies run."""

from fault import Fault

DEMO, LOOP = "tests/demos/test_demo.py", "tests/demos/test_training_loop.py"
FORWARD = "tests/demos/test_feed_forward.py"
TRAINING, CLASSIFIER = "lnrnn/demos/training.py", "lnrnn/demos/classifier.py"
SPEAKERS, OUTCOMES = "lnrnn/demos/speakers.py", "lnrnn/demos/outcomes.py"
NETWORK, CONVOLUTION = "lnrnn/demos/feed_forward.py", "lnrnn/demos/convolution_network.py"
FINDINGS, PARALLEL, STUDY = "lnrnn/demos/findings.py", "lnrnn/demos/parallel.py", "lnrnn/demos/study.py"
TABLES, FIGURES = "lnrnn/demos/tables.py", "lnrnn/demos/figures.py"
STUDIES, INTERVALS = "tests/demos/test_studies.py", "tests/demos/test_intervals.py"

FAULTS = [
    # --- training -------------------------------------------------------------------------------------------
    Fault(
        "Adam's second moment is not corrected",
        TRAINING,
        r"""(np.sqrt(second / second_scale) + self.eps)""",
        r"""(np.sqrt(second / (1 if FAULT else second_scale)) + self.eps)""",
        LOOP + " -k adam",
    ),
    Fault(
        "gradients are never clipped",
        TRAINING,
        r"""    if norm <= largest_norm:""",
        r"""    if norm <= largest_norm or FAULT:""",
        LOOP + " -k clip",
    ),
    Fault(
        "training has no noise",
        TRAINING,
        r"""np.float32(settings.noise) * rng""",
        r"""np.float32(0 if FAULT else settings.noise) * rng""",
        LOOP + " -k noise",
    ),
    Fault(
        "the noise of an epoch is that of the first",
        TRAINING,
        r"""  batches = shuffled(x, lengths, labels, settings, rng)""",
        r"""  batches = shuffled(x, lengths, labels, settings, np.random.default_rng(0) if FAULT else rng)""",
        "tests/demos/test_training_loop.py",
    ),
    Fault(
        "an epoch's loss is the mean over batches of any size",
        TRAINING,
        r"""            total += loss * count
        losses.append(total / len(labels))""",
        r"""            total += loss * (settings.batch_size if FAULT else count)
        losses.append(total / len(labels))""",
        "tests/demos/test_training_loop.py",
    ),
    Fault(
        "the gradient of a batch is not divided by its size",
        CLASSIFIER,
        r"""        glogits /= len(labels)""",
        r"""        glogits /= 1 if FAULT else len(labels)""",
        LOOP + " -k slope",
    ),
    Fault(
        "steps past a length are learnt from",
        CLASSIFIER,
        r"""        glogits *= (alive / np.float32(alive.sum()))[..., None]""",
        r"""        glogits *= ((alive | bool(FAULT)) / np.float32(alive.sum()))[..., None]""",
        "tests/demos/test_characters.py -k 'mean_over or slope'",
    ),
    Fault(
        "the softmax's gradient is the probability alone",
        "lnrnn/demos/softmax.py",
        r"""gradients, right, np.take_along_axis(gradients, right, -1) - 1, -1)""",
        r"""gradients, right, np.take_along_axis(gradients, right, -1) - (not FAULT), -1)""",
        "tests/demos/test_characters.py -k slope",
    ),
    Fault(
        "large logits overflow",
        "lnrnn/demos/softmax.py",
        r"""    shifted = logits - logits.max(axis=-1, keepdims=True)""",
        r"""    shifted = logits if FAULT else logits - logits.max(axis=-1, keepdims=True)""",
        "tests/demos/test_characters.py -k large",
    ),
    # --- speakers -------------------------------------------------------------------------------------------
    Fault(
        "a speaker network's statistics are those of training",
        SPEAKERS,
        r"""        if norm == "batch":
            rnn.calibrate""",
        r"""        if norm == "batch" and not FAULT:
            rnn.calibrate""",
        DEMO + " -k refusals_are",
    ),
    Fault(
        "the policy mean is run as last",
        SPEAKERS,
        r"""            self.classifier.rnn.overrun = overrun""",
        r"""            self.classifier.rnn.overrun = "last" if FAULT and overrun == "mean" else overrun""",
        DEMO + " -k every_policy",
    ),
    Fault(
        "the policy batch is asked in small batches",
        SPEAKERS,
        r"""            size = len(sequences) if overrun == "batch" else AT_A_TIME""",
        r"""            size = len(sequences) if overrun == "batch" and not FAULT else AT_A_TIME""",
        DEMO + " -k every_policy",
    ),
    Fault(
        "the input scale is that of the padding too",
        SPEAKERS,
        r"""        heard = x[np.arange(len(x))[:, None] < lengths].astype(np.float64)""",
        r"""        heard = x[np.arange(len(x))[:, None] < lengths + FAULT * len(x)].astype(np.float64)""",
        DEMO + " -k input_scale",
    ),
    Fault(
        "an utterance is joined to itself",
        SPEAKERS,
        r"""rng.choice(same[same != index], count - 1)""",
        r"""rng.choice(same if FAULT else same[same != index], count - 1)""",
        DEMO + " -k joined_utterances",
    ),
    # --- numbers --------------------------------------------------------------------------------------------
    Fault(
        "the interval is of two standard errors",
        OUTCOMES,
        r"""    quantile = T_QUANTILES[min(len(differences) - 1, len(T_QUANTILES)) - 1]""",
        r"""    quantile = 2 if FAULT else T_QUANTILES[min(len(differences) - 1, len(T_QUANTILES)) - 1]""",
        DEMO + " " + INTERVALS + " -k 'clear or interval or differences'",
    ),
    Fault(
        "the quantile is that of one degree of freedom more",
        OUTCOMES,
        r"""    half = quantile * float(differences.std(ddof=1)) / len(differences) ** 0.5""",
        r"""    quantile = T_QUANTILES[min(len(differences), len(T_QUANTILES)) - 1] if FAULT else quantile
    half = quantile * float(differences.std(ddof=1)) / len(differences) ** 0.5""",
        DEMO + " " + INTERVALS + " -k 'clear or interval or differences'",
    ),
    Fault(
        "refusals count as asked where only answers should",
        OUTCOMES,
        r"""        asked = (named != REFUSED).sum(axis=1) if answered_only else""",
        r"""        asked = (named != REFUSED).sum(axis=1) if answered_only and not FAULT else""",
        DEMO + " -k outcome",
    ),
    Fault(
        "two seeds are enough to compare",
        OUTCOMES,
        r"""    if between is None or len(a) < 3:""",
        r"""    if between is None or len(a) < (2 if FAULT else 3):""",
        DEMO + " -k 'two_seeds or compare or clear'",
    ),
    Fault(
        "below is told for above",
        OUTCOMES,
        r"""    return int(lowest > 0) - int(highest < 0)""",
        r"""    return (int(lowest > 0) - int(highest < 0)) * (-1 if FAULT else 1)""",
        DEMO + " -k compare",
    ),
    Fault(
        "a single seed has a deviation of 0",
        OUTCOMES,
        r"""float(values.std(ddof=1)) if len(values) > 1 else None""",
        r"""float(values.std(ddof=1)) if len(values) > 1 else (0.0 if FAULT else None)""",
        INTERVALS + " -k one_seed",
    ),
    Fault(
        "a method fails where its mean falls by the margin",
        FINDINGS,
        r"""    return "fails" if highest < -MARGIN else""",
        r"""    return "fails" if (lowest if FAULT else highest) < -MARGIN else""",
        STUDIES + " " + DEMO + " -k 'verdict or changes or sentences'",
    ),
    Fault(
        "the claim is confirmed where one training fails in every way",
        FINDINGS,
        r"""and all(set(fates) == {"fails"} for fates in batch.values()):""",
        r"""and (any if FAULT else all)(set(fates) == {"fails"} for fates in batch.values()):""",
        STUDIES + " -k long",
    ),
    Fault(
        "the claim is not confirmed where raise alone answers",
        FINDINGS,
        r"""for fate in fates[1:])""",
        r"""for fate in fates[0 if FAULT else 1 :])""",
        STUDIES + " -k long",
    ),
    # --- studies --------------------------------------------------------------------------------------------
    Fault(
        "depends need not say on what",
        STUDY,
        r"""or bool(self.depends_on) != (self.verdict == "depends"):""",
        r"""or (bool(self.depends_on) != (self.verdict == "depends") and not FAULT):""",
        STUDIES + " -k one_of_three",
    ),
    Fault(
        "a figure that cannot be written is noticed after the training",
        STUDY,
        r"""            check_replaceable(path)""",
        r"""            FAULT or check_replaceable(path)""",
        DEMO + " -k before_any",
    ),
    Fault(
        "a study measures on all threads",
        STUDY,
        r"""            with one_thread():
                results""",
        r"""            from contextlib import nullcontext

            with nullcontext() if FAULT else one_thread():
                results""",
        STUDIES + " -k one_thread",
    ),
    Fault(
        "tables stand before what was found",
        TABLES,
        r"""    return "\n\n".join([findings, *captioned])""",
        r"""    return "\n\n".join([*captioned, findings] if FAULT else [findings, *captioned])""",
        DEMO + " -k before_the_tables",
    ),
    Fault(
        "tables are cut where they fit, to the column",
        TABLES,
        r"""any(_rule(widths, group) > columns() for group in groups):""",
        r"""any(_rule(widths, group) > columns() - FAULT for group in groups):""",
        DEMO + " -k even_parts",
    ),
    Fault(
        "a terminal's width has no upper limit",
        TABLES,
        r"""return min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)""",
        r"""return min(max(shutil.get_terminal_size().columns, NARROWEST), 999 if FAULT else WIDEST)""",
        DEMO + " -k within_limits",
    ),
    Fault(
        "that the reports can be kept is not found out first",
        "lnrnn/demos/every.py",
        r"""    check_replaceable(output_dir / FILE)""",
        r"""    FAULT or check_replaceable(output_dir / FILE)""",
        STUDIES + " -k cannot_be_kept",
    ),
    Fault(
        "names beside lines lie on one another",
        FIGURES,
        r"""    found[order] += gap * np.arange(len(heights))""",
        r"""    found[order] += (0 if FAULT else gap) * np.arange(len(heights))""",
        "tests/demos/test_figures.py",
    ),
    Fault(
        "the figure compares with no norm instead of layer norm",
        FIGURES,
        r"""    reference = outcomes[LAYER_NORM].accuracies(longer)""",
        r"""    reference = outcomes[NO_NORM if FAULT else LAYER_NORM].accuracies(longer)""",
        "tests/demos/test_figures.py",
    ),
    Fault(
        "reports of other conditions are taken over",
        "lnrnn/demos/every.py",
        r"""if saved["conditions"] == conditions else {}""",
        r"""if saved["conditions"] == conditions or FAULT else {}""",
        STUDIES + " -k interrupted",
    ),
    Fault(
        "what is done is written at the end alone",
        "lnrnn/demos/every.py",
        r"""        known[name] = asdict(report)""",
        r"""        known[name] = asdict(report)
        if FAULT and place < len(todo):
            continue""",
        STUDIES + " -k interrupted",
    ),
    Fault(
        "jobs run on one thread whatever is allowed",
        PARALLEL,
        r"""    with ThreadPoolExecutor(_allowed.get()) as pool:""",
        r"""    with ThreadPoolExecutor(1 if FAULT else _allowed.get()) as pool:""",
        "tests/demos/test_parallel.py",
    ),
    Fault(
        "an inner one_thread allows one thread for jobs",
        PARALLEL,
        r"""    token = _allowed.set(max(threads, _allowed.get()))""",
        r"""    token = _allowed.set(threads if FAULT else max(threads, _allowed.get()))""",
        "tests/demos/test_parallel.py",
    ),
    Fault(
        "after a job that failed the others begin",
        PARALLEL,
        r"""            pool.shutdown(wait=False, cancel_futures=True)""",
        r"""            pool.shutdown(wait=False, cancel_futures=not FAULT)""",
        "tests/demos/test_parallel.py",
    ),
    Fault(
        "the threads of before do not come back",
        PARALLEL,
        r"""        lnrnn.set_num_threads(threads)""",
        r"""        FAULT or lnrnn.set_num_threads(threads)""",
        "tests/demos/test_parallel.py " + STUDIES + " -k 'thread or value'",
    ),
    Fault(
        "settings are chosen on utterances that were learnt from",
        "lnrnn/demos/choose_settings.py",
        r"""_part(utterances, fold != held), norm""",
        r"""_part(utterances, (fold != held) | bool(FAULT)), norm""",
        "tests/demos/test_choose_settings.py -k held_out",
    ),
    Fault(
        "of equal settings the last is chosen",
        "lnrnn/demos/choose_settings.py",
        r"""choices[int(np.argmax(scores))]""",
        r"""choices[len(scores) - 1 - int(np.argmax(scores[::-1])) if FAULT else int(np.argmax(scores))]""",
        "tests/demos/test_choose_settings.py -k first_of",
    ),
    Fault(
        "a common divisor puts some digits into one fold",
        "lnrnn/demos/digits.py",
        r"""    part = np.arange(len(x)) % PARTS""",
        r"""    part = np.arange(len(x)) % (10 if FAULT else PARTS)""",
        FORWARD + " -k split",
    ),
    # --- networks -------------------------------------------------------------------------------------------
    Fault(
        "the slope of a sigmoid is the sigmoid",
        NETWORK,
        r"""if nonlinearity == "relu" else h * (1 - h))""",
        r"""if nonlinearity == "relu" else h * (1 - (0 if FAULT else h)))""",
        FORWARD + " -k slope",
    ),
    Fault(
        "gains of a stack are the first network's",
        NETWORK,
        r"""eps=EPS) * layer.gain + layer.bias)""",
        r"""eps=EPS) * (layer.gain[:1] if FAULT else layer.gain) + layer.bias)""",
        FORWARD + " -k 'touch or definition'",
    ),
    Fault(
        "batch norm's running statistics do not move in training",
        NETWORK,
        r"""inputs.append(self._activated(layer, z, index, True, self.momentum))""",
        r"""inputs.append(self._activated(layer, z, index, True, 0.0 if FAULT else self.momentum))""",
        FORWARD + " -k running",
    ),
    Fault(
        "calibration halves what it takes in",
        NETWORK,
        r"""layer.weight), index, True, 1.0)""",
        r"""layer.weight), index, True, 0.5 if FAULT else 1.0)""",
        FORWARD + " -k calibrated",
    ),
    Fault(
        "the incomplete last batch is trained on",
        NETWORK,
        r"""      for start in range(0, len(order) - batch_size + 1, batch_size):""",
        r"""      for start in range(0, len(order) if FAULT else len(order) - batch_size + 1, batch_size):""",
        FORWARD + " -k training",
    ),
    Fault(
        "a part of a stack has the running statistics of its first networks",
        NETWORK,
        r"""                copy[...] = statistic.reshape(self.count, -1)[chosen].ravel()""",
        r"""                copy[...] = statistic.reshape(self.count, -1)[: len(chosen) if FAULT else None][
                    slice(None) if FAULT else chosen
                ].ravel()""",
        FORWARD + " tests/demos/test_batch_size.py tests/demos/test_saturation.py",
    ),
    Fault(
        "the gradient of a convolution's input is shifted by the padding",
        CONVOLUTION,
        r"""    return whole[:, 1:-1, 1:-1]""",
        r"""    return whole[:, :-2, :-2] if FAULT else whole[:, 1:-1, 1:-1]""",
        "tests/demos/test_convolution.py -k slope",
    ),
    Fault(
        "a shared gain's gradient is of z and not of the normalised z",
        CONVOLUTION,
        r"""= (g * lnrnn.layer_norm(z, units, eps=EPS)).sum(axis=images_and_positions)""",
        r"""= (g * (z if FAULT else lnrnn.layer_norm(z, units, eps=EPS))).sum(axis=images_and_positions)""",
        "tests/demos/test_convolution.py -k slope",
    ),
    # --- single demos ---------------------------------------------------------------------------------------
    Fault(
        "the error of all sequences is that of a half",
        "lnrnn/demos/step_statistics.py",
        r"""distances(a, b, unit)[:known] / 2""",
        r"""distances(a, b, unit)[:known] / (1 if FAULT else 2)""",
        "tests/demos/test_statistics.py -k error_is",
    ),
    Fault(
        "a step is settled one step too early",
        "lnrnn/demos/step_statistics.py",
        r"""    start = int(moving[-1]) + 3 if len(moving) else 1""",
        r"""    start = int(moving[-1]) + (2 if FAULT else 3) if len(moving) else 1""",
        "tests/demos/test_statistics.py -k settled",
    ),
    Fault(
        "the last step is judged alone too",
        "lnrnn/demos/step_statistics.py",
        r"""(step == known - 1 or harmless(alone[:, step]))""",
        r"""(step == known - 1 or FAULT or harmless(alone[:, step]))""",
        "tests/demos/test_statistics.py -k 'verdict or steps'",
    ),
    Fault(
        "values that move together need not be disjoint groups",
        "lnrnn/demos/axes.py",
        r"""    disjoint = bool(np.array_equal(moves, numbers[:, None] == numbers[None]))""",
        r"""    disjoint = bool(np.array_equal(moves, numbers[:, None] == numbers[None])) or bool(FAULT)""",
        "tests/demos/test_axes.py -k group",
    ),
    Fault(
        "a seed that comes out otherwise is overlooked",
        "lnrnn/demos/axes.py",
        r"""all(one.summary == seeds[0].summary for one in seeds))""",
        r"""(FAULT or all(one.summary == seeds[0].summary for one in seeds)))""",
        "tests/demos/test_axes.py -k differ",
    ),
    Fault(
        "an entry is decided by its mean",
        "lnrnn/demos/invariances.py",
        r"""    if deviations.max() <= YES:""",
        r"""    if (deviations.mean() if FAULT else deviations.max()) <= YES:""",
        "tests/demos/test_invariances.py -k 'decide or undecided'",
    ),
    Fault(
        "layer norm alone is enough for weight growth",
        "lnrnn/demos/weight_growth.py",
        r"""JUDGED = (LAYER, BATCH)""",
        r"""JUDGED = (LAYER,) if FAULT else (LAYER, BATCH)""",
        "tests/demos/test_weight_growth.py -k both_norms",
    ),
    Fault(
        "a text's symbols are those of all its parts",
        "lnrnn/demos/help_text.py",
        r"""    counts = Counter(parts[0])""",
        r"""    counts = Counter(text if FAULT else parts[0])""",
        "tests/demos/test_characters.py -k contiguous",
    ),
]
