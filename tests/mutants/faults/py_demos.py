"""Faults of the demo: training, networks, and numbers that follow from answers."""

from fault import Fault

SPEAKERS, DEMO = "lnrnn/speakers.py", "lnrnn/demo.py"
LOOP, SHORT = "tests/demo/test_training_loop.py", "tests/demo/test_short_demo.py"

FAULTS = [
    Fault(
        "Adam's second moment is not corrected",
        SPEAKERS,
        r"""(np.sqrt(second / second_scale) + self.eps)""",
        r"""(np.sqrt(second / (1 if FAULT else second_scale)) + self.eps)""",
        LOOP,
    ),
    Fault(
        "gradients are never clipped",
        SPEAKERS,
        r"""    if norm <= largest_norm:""",
        r"""    if norm <= largest_norm or FAULT:""",
        LOOP,
    ),
    Fault(
        "training has no noise",
        SPEAKERS,
        r"""np.float32(settings.noise) * rng""",
        r"""np.float32(0 if FAULT else settings.noise) * rng""",
        LOOP,
    ),
    Fault(
        "the noise of an epoch is that of the first",
        SPEAKERS,
        r"""  batches = shuffled(x, lengths, labels, settings, rng)""",
        r"""  batches = shuffled(x, lengths, labels, settings, np.random.default_rng(0) if FAULT else rng)""",
        LOOP,
    ),
    Fault(
        "an epoch's loss is the mean over batches of any size",
        SPEAKERS,
        r"""            total += loss * count
        losses.append(total / len(labels))""",
        r"""            total += loss * (settings.batch_size if FAULT else count)
        losses.append(total / len(labels))""",
        LOOP,
    ),
    Fault(
        "the gradient of a batch is not divided by its size",
        SPEAKERS,
        r"""        glogits /= len(labels)""",
        r"""        glogits /= 1 if FAULT else len(labels)""",
        LOOP,
    ),
    Fault(
        "the softmax's gradient is the probability alone",
        SPEAKERS,
        r"""gradients, right, np.take_along_axis(gradients, right, -1) - 1, -1)""",
        r"""gradients, right, np.take_along_axis(gradients, right, -1) - (not FAULT), -1)""",
        LOOP,
    ),
    Fault(
        "large logits overflow",
        SPEAKERS,
        r"""    shifted = logits - logits.max(axis=-1, keepdims=True)""",
        r"""    shifted = logits if FAULT else logits - logits.max(axis=-1, keepdims=True)""",
        LOOP,
    ),
    Fault(
        "a speaker network's statistics are those of training",
        SPEAKERS,
        r"""        if norm == "batch":
            rnn.calibrate""",
        r"""        if norm == "batch" and not FAULT:
            rnn.calibrate""",
        LOOP,
    ),
    Fault(
        "the policy batch is asked in small batches",
        SPEAKERS,
        r"""            size = len(sequences) if overrun == "batch" else AT_A_TIME""",
        r"""            size = len(sequences) if overrun == "batch" and not FAULT else AT_A_TIME""",
        LOOP,
    ),
    Fault(
        "the input scale is that of the padding too",
        SPEAKERS,
        r"""        heard = x[np.arange(len(x))[:, None] < lengths].astype(np.float64)""",
        r"""        heard = x[np.arange(len(x))[:, None] < lengths + FAULT * len(x)].astype(np.float64)""",
        LOOP,
    ),
    Fault(
        "the threads of before do not come back",
        SPEAKERS,
        r"""        lnrnn.set_num_threads(threads)""",
        r"""        FAULT or lnrnn.set_num_threads(threads)""",
        LOOP,
    ),
]
