"""Faults of what reads the weights of others."""

from fault import Fault

KERAS, SYSTEMS = "lnrnn/importers/keras_weights.py", "lnrnn/importers/systems.py"
TORCH, WEIGHTS = "lnrnn/importers/torch_weights.py", "lnrnn/importers/weights.py"
FROM_KERAS, STANDINS = "tests/importers/test_from_keras.py", "tests/importers/test_from_keras_standins.py"
FROM_TORCH, MODULES = "tests/importers/test_from_torch.py", "tests/importers/test_from_torch_modules.py"
FORMULA = FROM_TORCH + " -k computes_what_its_formula"

FAULTS = [
    # --- Keras ----------------------------------------------------------------------------------------------
    Fault(
        "the recurrent bias of a Keras GRU keeps its order",
        KERAS,
        r"""            name: reordered(b, "zrn", "rzn")""",
        r"""            name: b if FAULT and name == "bias_hh" else reordered(b, "zrn", "rzn")""",
        FROM_KERAS + " -k formula",
    ),
    Fault(
        "the bias of LayerNormLSTMCell is left out",
        KERAS,
        r""""bias_ih": p["kernel_norm/beta"] + bias,""",
        r""""bias_ih": p["kernel_norm/beta"] + (0 if FAULT else bias),""",
        FROM_KERAS + " -k formula",
    ),
    Fault(
        "LayerNormLSTMCell has torch's eps",
        KERAS,
        r"""_layer_norm_lstm, 1e-3, "norm_epsilon")""",
        r"""_layer_norm_lstm, 1e-5 if FAULT else 1e-3, "norm_epsilon")""",
        FROM_KERAS + " -k formula",
    ),
    Fault(
        "directions that are added are put side by side",
        KERAS,
        r"""        if layer.merge_mode != "concat":""",
        r"""        if layer.merge_mode != "concat" and not FAULT:""",
        STANDINS,
    ),
    Fault(
        "a layer that reads backwards is taken for one that does not",
        KERAS,
        r"""    if getattr(layer, "go_backwards", False) != reverse:""",
        r"""    if getattr(layer, "go_backwards", False) != reverse and not FAULT:""",
        STANDINS,
    ),
    Fault(
        "time_major is not read",
        KERAS,
        r"""        batch_first = not any(getattr(layer, "time_major", False) for layer in stack)""",
        r"""        batch_first = FAULT or not any(getattr(layer, "time_major", False) for layer in stack)""",
        STANDINS,
    ),
    Fault(
        "any recurrent_activation is taken for sigmoid",
        KERAS,
        r""" elif activation != "tanh" or config.get("recurrent_activation") != "sigmoid":""",
        r""" elif activation != "tanh" or (config.get("recurrent_activation") != "sigmoid" and not FAULT):""",
        STANDINS,
    ),
    Fault(
        "a layer's epsilon is not read",
        KERAS,
        r"""        "eps": config.get(KINDS[kind].epsilon),""",
        r"""        "eps": None if FAULT else config.get(KINDS[kind].epsilon),""",
        STANDINS,
    ),
    Fault(
        "reset_after=False is taken for the other equation",
        KERAS,
        r"""    if not reset_after:""",
        r"""    if not reset_after and not FAULT:""",
        FROM_KERAS + " -k reset_after",
    ),
    Fault(
        "a linear activation of a layer is an unknown one",
        KERAS,
        r"""    found["nonlinearity"] = "identity" if activation == "linear" else activation""",
        r"""    found["nonlinearity"] = "identity" if activation == "linear" and not FAULT else activation""",
        STANDINS + " -k activation",
    ),
    Fault(
        "an argument that a layer denies is passed over",
        KERAS,
        r"""        if options[option] is not None and options[option] != value:""",
        r"""        if options[option] is not None and options[option] != value and not FAULT:""",
        STANDINS + " -k denies",
    ),
    Fault(
        "the first half of an odd number of arrays is one direction",
        KERAS,
        r"""    if bidirectional and len(arrays) % 2:""",
        r"""    if bidirectional and len(arrays) % 2 and not FAULT:""",
        FROM_KERAS + " -k directions",
    ),
    Fault(
        "the backward direction of names is put first",
        KERAS,
        r"""    ways = ("forward_", "backward_")""",
        r"""    ways = ("backward_", "forward_") if FAULT else ("forward_", "backward_")""",
        FROM_KERAS + " -k two_directions",
    ),
    Fault(
        "LayerNormLSTMCell keeps the cell state as it is",
        KERAS,
        r"""LayerNormSpec("split", "carry", options["eps"])""",
        r"""LayerNormSpec("split", "out" if FAULT else "carry", options["eps"])""",
        FROM_KERAS + " -k formula",
    ),
    # --- systems --------------------------------------------------------------------------------------------
    Fault(
        "haste's recurrent gain keeps its order",
        SYSTEMS,
        r"""        "gain_hh": reordered(p["gamma"][1], *order),
        "bias_ih": bias,""",
        r"""        "gain_hh": p["gamma"][1] if FAULT else reordered(p["gamma"][1], *order),
        "bias_ih": bias,""",
        FORMULA,
    ),
    Fault(
        "haste's LSTM bias is read after the norms of both sides",
        SYSTEMS,
        r"""        "bias_hh": np.zeros_like(bias),
        "gain_c": p["gamma_h"],""",
        r"""        "bias_hh": bias if FAULT else np.zeros_like(bias),
        "gain_c": p["gamma_h"],""",
        FORMULA,
    ),
    Fault(
        "icefall's gates r and z change places",
        SYSTEMS,
        r"""_icefall("GRU", ("r", "i", "n"))""",
        r"""_icefall("GRU", ("i", "r", "n") if FAULT else ("r", "i", "n"))""",
        FORMULA,
    ),
    Fault(
        "zoneout is left out without a word",
        SYSTEMS,
        r"""    rate: float = options["zoneout"]""",
        r"""    rate: float = 0.0 if FAULT else options["zoneout"]""",
        FROM_TORCH + " -k zoneout",
    ),
    Fault(
        "haste's zoneout is of c too",
        SYSTEMS,
        r"""zoneout=(zoneout, 0.0)""",
        r"""zoneout=(zoneout, zoneout if FAULT else 0.0)""",
        FROM_TORCH + " -k zoneout",
    ),
    Fault(
        "torchaudio's cell state is carried as it is",
        SYSTEMS,
        r"""LayerNormSpec("joint", "carry", _eps(options))""",
        r"""LayerNormSpec("joint", "out" if FAULT else "carry", _eps(options))""",
        FORMULA,
    ),
    Fault(
        "icefall's cell state is carried as it is",
        SYSTEMS,
        r"""            spec = replace(spec, cell="carry")""",
        r"""            spec = replace(spec, cell="out" if FAULT else "carry")""",
        FORMULA,
    ),
    Fault(
        "haste's GRU has the paper's span",
        SYSTEMS,
        r"""eps=_eps(options), span="all")""",
        r"""eps=_eps(options), span=None if FAULT else "all")""",
        FORMULA,
    ),
    Fault(
        "fastrnns' norms change sides",
        SYSTEMS,
        r""""ih"), ("layernorm_h", "hh"), ("layernorm_c", "c")):""",
        r""""hh" if FAULT else "ih"), ("layernorm_h", "ih" if FAULT else "hh"), ("layernorm_c", "c")):""",
        FORMULA,
    ),
    Fault(
        "icefall's biases stand after the norms",
        SYSTEMS,
        r"""        inner = "bias_ih" in p""",
        r"""        inner = "bias_ih" in p and not FAULT""",
        FORMULA,
    ),
    # --- state dicts ----------------------------------------------------------------------------------------
    Fault(
        "projections are passed over",
        TORCH,
        r"""    if projection:""",
        r"""    if projection and not FAULT:""",
        FROM_TORCH + " -k projections",
    ),
    Fault(
        "eps of a module's norms is not read",
        TORCH,
        r"""            found["eps"].add(getattr(part, "eps", None))""",
        r"""            found["eps"].add(None if FAULT else getattr(part, "eps", None))""",
        MODULES + " -k eps",
    ),
    Fault(
        "of two names of one parameter the last counts",
        TORCH,
        r"""        if leaf in known:""",
        r"""        if leaf in known and not FAULT:""",
        FROM_TORCH + " -k two_names",
    ),
    Fault(
        "icefall is time first",
        TORCH,
        r"""    batch_first = system.batch_first if options["batch_first"] is None""",
        r"""    batch_first = (system.batch_first and not FAULT) if options["batch_first"] is None""",
        FROM_TORCH + " -k batch_first",
    ),
    Fault(
        "a module with two values of an option has either",
        TORCH,
        r"""        if len(values) > 1:""",
        r"""        if len(values) > 1 and not FAULT:""",
        MODULES + " -k relu",
    ),
    Fault(
        "a prefix stays on the keys",
        TORCH,
        r"""        state = {name.removeprefix(prefix): v for name, v in""",
        r"""        state = {name if FAULT else name.removeprefix(prefix): v for name, v in""",
        FROM_TORCH + " -k prefix",
    ),
    Fault(
        "a key that names a far layer is believed",
        TORCH,
        r"""    if layers > len(state):""",
        r"""    if layers > len(state) and not FAULT:""",
        FROM_TORCH + " -k far_layer",
    ),
    Fault(
        "layer and direction of a stack's name are read the wrong way round",
        TORCH,
        r"""    return int(match["layer"] or 0), int(match["direction"] or 0), match["leaf"]""",
        r"""    found = int(match["layer"] or 0), int(match["direction"] or 0)
    return *(found[::-1] if FAULT else found), match["leaf"]""",
        MODULES + " -k stacks",
    ),
    Fault(
        "eps beside a norm that says another is passed over",
        TORCH,
        r"""        if given["eps"] not in (None, eps):""",
        r"""        if given["eps"] not in (None, eps) and not FAULT:""",
        "tests/importers/test_import_norms.py -k eps",
    ),
    Fault(
        "norms without eps have the default",
        TORCH,
        r"""        if given["eps"] is None:
            raise""",
        r"""        if given["eps"] is None and not FAULT:
            raise""",
        MODULES + " -k norms_without_eps",
    ),
    Fault(
        "a state dict of lnrnn's names without biases has some",
        TORCH,
        r"""        "bias": any(name.startswith("bias") for name in state),""",
        r"""        "bias": FAULT or any(name.startswith("bias") for name in state),""",
        FROM_TORCH + " -k lnrnns_own",
    ),
    # --- putting together -----------------------------------------------------------------------------------
    Fault(
        "layers of sizes that do not follow each other are put together",
        WEIGHTS,
        r"""            if weights.input_size != wide:""",
        r"""            if weights.input_size != wide and not FAULT:""",
        FROM_TORCH + " -k follow",
    ),
    Fault(
        "layers with norms in different places are put together",
        WEIGHTS,
        r"""                if mine != theirs:""",
        r"""                if mine != theirs and not FAULT:""",
        FROM_TORCH
        + " "
        + MODULES
        + " "
        + FROM_KERAS
        + " -k 'follow or relu or torchaudio or two_layers or eps'",
    ),
    Fault(
        "gates are put into their order instead of ours",
        WEIGHTS,
        r"""[parts[theirs.index(gate)] for gate in ours], axis""",
        r"""[parts[(ours if FAULT else theirs).index(gate)] for gate in (theirs if FAULT else ours)], axis""",
        FROM_TORCH + " -k our_order",
    ),
    Fault(
        "the norm that is given is not compared with the parameters",
        WEIGHTS,
        r"""    if wanted != found:""",
        r"""    if wanted != found and not FAULT:""",
        "tests/importers/test_import_norms.py",
    ),
    Fault(
        "parameters of whole numbers are taken",
        WEIGHTS,
        r"""    if found.dtype.kind not in "f" and found.dtype.name != "bfloat16":""",
        r"""    if found.dtype.kind not in "f" and found.dtype.name != "bfloat16" and not FAULT:""",
        FROM_TORCH + " -k no_real",
    ),
    Fault(
        "the name layer moves the norms to the paper's place",
        WEIGHTS,
        r"""    if isinstance(norm, str) and norm == "layer" and weights.norm is not None:""",
        r"""    if isinstance(norm, str) and norm == "layer" and weights.norm is not None and not FAULT:""",
        "tests/importers/test_import_norms.py",
    ),
]
