"""Faults of the check that runs the modules of others beside their conversions."""

from fault import Fault

CHECKING, CHECKS = "lnrnn/importers/checking.py", "tests/importers/test_import_checks.py"
RUNNING = "lnrnn/importers/running.py"

FAULTS = [
    # --- checking -------------------------------------------------------------------------------------------
    Fault(
        "states at the end are not compared",
        CHECKING,
        r"""        theirs = (answer.y, *answer.states)""",
        r"""        theirs = (answer.y, *(() if FAULT else answer.states))""",
        CHECKS + " -k another_state",
    ),
    Fault(
        "a module derived from torch's is known",
        CHECKING,
        r"""    if cls not in torchs and cls.__module__.split(".")[:2] != ["lnrnn", "torch"]:""",
        r"""    if not (issubclass(cls, tuple(filter(None, torchs))) if FAULT else cls in torchs) and (
        cls.__module__.split(".")[:2] != ["lnrnn", "torch"]
    ):""",
        CHECKS + " -k derived",
    ),
    Fault(
        "hooks before a known module do not count",
        CHECKING,
        r"""module._forward_hooks or module._forward_pre_hooks)""",
        r"""module._forward_hooks or (module._forward_pre_hooks and not FAULT))""",
        CHECKS + " -k hung",
    ),
    Fault(
        "parameters that a module changes while it runs stay changed",
        RUNNING,
        r"""                    t.copy_(number)""",
        r"""                    FAULT or t.copy_(number)""",
        CHECKS + " -k as_it_was",
    ),
    Fault(
        "attributes that a module sets while it runs stay",
        RUNNING,
        r"""                now.clear()
                now.update(then)""",
        r"""                FAULT or now.clear()
                FAULT or now.update(then)""",
        CHECKS + " -k as_it_was",
    ),
    Fault(
        "modules stay in evaluation",
        RUNNING,
        r"""            part.training = flag""",
        r"""            part.training = part.training if FAULT else flag""",
        CHECKS + " -k scripted",
    ),
    Fault(
        "torch's random state moves",
        RUNNING,
        r"""        with torch.random.fork_rng(devices=cuda), torch.no_grad():""",
        r"""        with torch.random.fork_rng(devices=cuda, enabled=not FAULT), torch.no_grad():""",
        CHECKS + " -k as_it_was",
    ),
    Fault(
        "the limit is a hundred times what rounding explains",
        CHECKING,
        r"""    limit *= MARGIN
""",
        r"""    limit *= 100 * MARGIN if FAULT else MARGIN
""",
        "tests/importers/test_import_checks.py -k twenty_thousandth",
    ),
    Fault(
        "outputs that rounding alone may change say something",
        CHECKING,
        r"""    if found <= limit > 0.25 * size:""",
        r"""    if found <= limit > 0.25 * size and not FAULT:""",
        CHECKS + " -k 'half_precision or say_nothing'",
    ),
    Fault(
        "an order of axes that is not the model's is not told",
        CHECKING,
        r""" if batch_first is None and answer.batch_first not in (None, model.batch_first):""",
        r""" if not FAULT and batch_first is None and answer.batch_first not in (None, model.batch_first):""",
        CHECKS + " -k order_of_axes",
    ),
    Fault(
        "check=False checks all the same",
        CHECKING,
        r"""= not (check is None or isinstance(check, (bool, np.bool_)) and not check)""",
        r"""= not (check is None or isinstance(check, (bool, np.bool_)) and not check and not FAULT)""",
        CHECKS,
    ),
    Fault(
        "batch norm is checked over more steps than it knows",
        RUNNING,
        r"""            steps = min(steps, model.known_steps)""",
        r"""            steps = steps if FAULT else min(steps, model.known_steps)""",
        CHECKS + " -k batch_norm",
    ),
    Fault(
        "the layers of a container are each fed the same input",
        CHECKING,
        r"""        x = time_first(answer.y.astype(np.float32), answer.batch_first)""",
        r"""        x = x if FAULT else time_first(answer.y.astype(np.float32), answer.batch_first)""",
        CHECKS,
    ),
]
