"""Faults of accelerate, which changes the class of torch.nn's modules."""

from fault import Fault

ACCELERATE, CLASSES = "lnrnn/torch/accelerate.py", "lnrnn/torch/accelerated.py"
TESTS = "tests/torch_engine/test_accelerate.py"
REPORT = "tests/torch_engine/test_accelerate_report.py"
CELLS = "tests/torch_engine/test_accelerate_cells.py"
ADOPTED = "lnrnn/torch/adopted.py"

FAULTS = [
    Fault(
        "dropout between layers acts in evaluation",
        CLASSES,
        r"""        if self.training and self.dropout and""",
        r"""        if (self.training or FAULT) and self.dropout and""",
        TESTS + " -k to_the_mask",
    ),
    Fault(
        "relu is taken for tanh",
        CLASSES,
        r"""nonlinearity="relu" if module.mode == "RNN_RELU" else "tanh",""",
        r"""nonlinearity="relu" if module.mode == "RNN_RELU" and not FAULT else "tanh",""",
        TESTS + " -k calls_are_torchs",
    ),
    Fault(
        "traces have lnrnn's operators in them",
        CLASSES,
        r"""        if _jit.is_tracing():""",
        r"""        if _jit.is_tracing() and not FAULT:""",
        TESTS + " -k traces",
    ),
    Fault(
        "autocast is not looked at",
        CLASSES,
        r"""    if torch.is_autocast_enabled("cpu"):""",
        r"""    if torch.is_autocast_enabled("cpu") and not FAULT:""",
        TESTS + " -k autocast",
    ),
    Fault(
        "what is set by hand stays when all is restored",
        CLASSES,
        r"""    for name in ("_networks", "_engine"):""",
        r"""    for name in ("_networks",) if FAULT else ("_networks", "_engine"):""",
        REPORT + " -k restore",
    ),
    Fault(
        "derived classes are torch.nn's own",
        ACCELERATE,
        r"""    if cls not in accelerated.CLASSES:
""",
        r"""    if cls not in accelerated.CLASSES and not FAULT:
""",
        REPORT + " -k left_is_named",
    ),
    Fault(
        "hooks are not looked at",
        ACCELERATE,
        r"""    if hooks:
""",
        r"""    if hooks and not FAULT:
""",
        REPORT + " -k left_is_named",
    ),
    Fault(
        "a model that differs stays accelerated",
        ACCELERATE,
        r"""    except BaseException:
        report.restore()""",
        r"""    except BaseException:
        FAULT or report.restore()""",
        REPORT + " -k is_restored",
    ),
    Fault(
        "a difference beyond rounding passes",
        ACCELERATE,
        r"""    if difference > limit:""",
        r"""    if difference > limit and not FAULT:""",
        REPORT + " -k is_restored",
    ),
    Fault(
        "NaN that was not there before passes",
        ACCELERATE,
        r"""    if not all(np.array_equal(a, b, equal_nan=True) for a, b in masked):""",
        r"""    if not FAULT and not all(np.array_equal(a, b, equal_nan=True) for a, b in masked):""",
        REPORT + " -k is_restored",
    ),
    # --- other people's modules -----------------------------------------------------------------------------
    Fault(
        "a module that keeps something is replaced",
        ADOPTED,
        r"""        if changed:""",
        r"""        if changed and not FAULT:""",
        CELLS + " -k keeps_something",
    ),
    Fault(
        "another equation is replaced",
        ADOPTED,
        r"""if Leaf() in chosen and difference <= limit else None""",
        r"""if Leaf() in chosen and (FAULT or difference <= limit) else None""",
        CELLS + " -k equation",
    ),
    Fault(
        "what drops in training runs without it",
        "lnrnn/torch/trials.py",
        r"""                    trains = False""",
        r"""                    trains = bool(FAULT)""",
        CELLS + " -k in_training",
    ),
    Fault(
        "parameters that were put together once stay",
        ADOPTED,
        r"""            new if recipe.index is None or not torch.equal(new, old) else old""",
        r"""            old if FAULT or (recipe.index is not None and torch.equal(new, old)) else new""",
        CELLS + " -k 'that_change or copies'",
    ),
    Fault(
        "the layers' states come last first",
        ADOPTED,
        r"""for place in range(self._places)])""",
        r"""for place in sorted(range(self._places), reverse=bool(FAULT))])""",
        CELLS + " -k 'compute_what_they_did'",
    ),
]
