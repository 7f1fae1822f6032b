"""Names and shapes of a recurrent network's parameters: torch's, and those of the norms inside."""

from __future__ import annotations


def suffixes(num_layers: int, bidirectional: bool) -> list[str]:
    """What the names of each layer and direction end in, in the order of the state's first axis: _l0, _l0_reverse, ..."""
    ends = ("", "_reverse") if bidirectional else ("",)
    return [f"_l{k}{end}" for k in range(num_layers) for end in ends]


def shapes(
    input_size: int, hidden_size: int, num_layers: int, bidirectional: bool, normed: bool, bias: bool
) -> dict[str, tuple[int, ...]]:
    """Trainable parameters by name. normed: one gain and one bias per unit instead of torch's two biases."""
    H, found = hidden_size, {}
    directions = 2 if bidirectional else 1
    biases = (("bias",) if normed else ("bias_ih", "bias_hh")) if bias else ()
    for index, suffix in enumerate(suffixes(num_layers, bidirectional)):
        wide = input_size if index < directions else directions * H
        found[f"weight_ih{suffix}"] = (H, wide)
        found[f"weight_hh{suffix}"] = (H, H)
        for name in (("gain",) if normed else ()) + biases:
            found[f"{name}{suffix}"] = (H,)
    return found
