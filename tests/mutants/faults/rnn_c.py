"""Faults of the recurrent C: steps, layers, cells, gradients."""

from fault import Fault

FAULTS = [
    Fault(
        "the first step beyond the known ones takes the statistics of its own place",
        "pyx/rnn/step.c",
        "PLACEHOLDER",
        "FAULT",
        "tests/rnn/test_batch_norm_steps.py",
    ),
]
