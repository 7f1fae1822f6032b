"""A small convolutional network for the digits, with layer norm, batch norm or no norm, in NumPy.

Activations are (B, height, width, channels). A convolution multiplies the patches of its input, cut out as
rows (im2col), by its weights; einsum does it rather than ``@``, as everywhere in the demos: BLAS may add in
another order with another number of threads, and a demo's numbers have to come out the same bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

import lnrnn
from lnrnn.demos.digits import CLASSES, PIXELS
from lnrnn.demos.softmax import cross_entropy

# What shares its statistics and its gain and bias:
# batch: statistics per channel, over the batch and all positions; a gain per channel.
# layer: statistics per image, over channels and positions; a gain per unit, that is per channel and position.
# layer-shared: as layer, but a gain per channel.
# layer-channels: statistics per image and position, over the channels; a gain per channel.
Kind = Literal["batch", "layer", "layer-shared", "layer-channels"]
SIDE = 8
KERNEL = 3
EPS, MOMENTUM = 1e-5, 0.1


@dataclass(frozen=True)
class Shape:
    """Of one convolution, KERNEL x KERNEL with one row and column of zeros around its input."""

    inputs: int
    channels: int
    stride: int
    side: int  # of its output

    @property
    def units(self) -> tuple[int, int, int]:
        return self.side, self.side, self.channels


SHAPES = (Shape(1, 8, 1, 8), Shape(8, 8, 1, 8), Shape(8, 16, 2, 4), Shape(16, 16, 1, 4))
assert SIDE**2 == PIXELS


def patches(x: np.ndarray, shape: Shape) -> np.ndarray:
    """x (B, side, side, inputs) -> what each output sees of it, (B * positions, KERNEL * KERNEL * inputs)."""
    count, side, stride = len(x), shape.side, shape.stride
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    found = np.empty((count, side, side, KERNEL, KERNEL, shape.inputs), x.dtype)
    for row, column in np.ndindex(KERNEL, KERNEL):
        found[:, :, :, row, column] = padded[
            :, row : row + stride * side : stride, column : column + stride * side : stride
        ]
    return found.reshape(count * side * side, -1)


def add_patches(gradient: np.ndarray, shape: Shape) -> np.ndarray:
    """The gradient by `patches` -> that by its input, (B, side, side, inputs)."""
    side, stride = shape.side, shape.stride
    parts = gradient.reshape(-1, side, side, KERNEL, KERNEL, shape.inputs)
    whole = np.zeros((len(parts), stride * side + 2, stride * side + 2, shape.inputs), gradient.dtype)
    for row, column in np.ndindex(KERNEL, KERNEL):
        whole[:, row : row + stride * side : stride, column : column + stride * side : stride] += parts[
            :, :, :, row, column
        ]
    return whole[:, 1:-1, 1:-1]


class ConvolutionalNetwork:
    """Convolutions by SHAPES, each relu(gain * norm(W * x) + bias), without a norm relu(W * x + bias), then
    one dense layer.

    Weights are normal with variance 2 / inputs (He et al. 2015), gains 1, biases 0. seed: networks of one
    seed start alike, whatever their norm. told: after training, whether each image was named right just
    before it was learnt from, in the order of learning.
    """

    def __init__(self, kind: Kind | None, seed: int) -> None:
        self.kind = kind
        self.told: list[np.ndarray] = []
        self._values: dict[str, np.ndarray] = {}
        self.running: list[tuple[np.ndarray, np.ndarray]] = []
        rng = np.random.default_rng(seed)

        def normal(outputs: int, inputs: int) -> np.ndarray:
            values = rng.standard_normal((outputs, inputs), dtype=np.float32)
            return values * np.float32((2 / inputs) ** 0.5)

        for place, shape in enumerate(SHAPES):
            own = shape.units if kind == "layer" else (shape.channels,)
            self._values[f"weight_{place}"] = normal(shape.channels, KERNEL**2 * shape.inputs)
            self._values[f"bias_{place}"] = np.zeros(own, np.float32)
            if kind:
                self._values[f"gain_{place}"] = np.ones(own, np.float32)
            if kind == "batch":
                self.running.append((np.zeros(own, np.float32), np.ones(own, np.float32)))
        self._values["head_weight"] = normal(CLASSES, int(np.prod(SHAPES[-1].units)))
        self._values["head_bias"] = np.zeros(CLASSES, np.float32)

    def parameters(self) -> dict[str, np.ndarray]:
        return dict(self._values)

    def set_parameters(self, values: dict[str, np.ndarray], /) -> None:
        self._values.update(values)

    def hidden(self, x: np.ndarray) -> list[np.ndarray]:
        """x (B, PIXELS) -> the output of each convolution, at inference."""
        return self._forward(x, False)[2]

    def logits(self, x: np.ndarray) -> np.ndarray:
        """x (B, PIXELS) -> (B, CLASSES), at inference."""
        return self._head(self.hidden(x)[-1])

    def _head(self, h: np.ndarray) -> np.ndarray:
        flat = h.reshape(len(h), -1)
        product = np.einsum("bi,ci->bc", flat, self._values["head_weight"])
        return np.asarray(product + self._values["head_bias"])

    def _forward(
        self, x: np.ndarray, training: bool
    ) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
        """The patches that each convolution sees, its products, its outputs."""
        h = x.reshape(-1, SIDE, SIDE, 1)
        seen, products, outputs = [], [], []
        for place, shape in enumerate(SHAPES):
            seen.append(patches(h, shape))
            z = np.einsum("pk,ck->pc", seen[-1], self._values[f"weight_{place}"])
            products.append(z.reshape(-1, *shape.units))
            h = np.maximum(self._normalised(products[-1], place, training), 0)
            outputs.append(h)
        return seen, products, outputs

    def _normalised(self, z: np.ndarray, place: int, training: bool) -> np.ndarray:
        """gain * norm(z) + bias of z (B, side, side, channels)."""
        bias = self._values[f"bias_{place}"]
        if self.kind is None:
            return np.asarray(z + bias)
        gain, units = self._values[f"gain_{place}"], z.shape[1:]
        if self.kind == "batch":
            mean, var = self.running[place]
            rows = z.reshape(-1, units[-1])
            return lnrnn.batch_norm(rows, mean, var, gain, bias, training, MOMENTUM, EPS).reshape(z.shape)
        if self.kind == "layer-shared":  # the library's gain would be one per unit
            return np.asarray(lnrnn.layer_norm(z, units, eps=EPS) * gain + bias)
        return lnrnn.layer_norm(z, units if self.kind == "layer" else units[-1], gain, bias, EPS)

    def loss_and_gradients(
        self, x: np.ndarray, lengths: np.ndarray, labels: np.ndarray, /
    ) -> tuple[float, dict[str, np.ndarray]]:
        """As `lnrnn.demos.training.train` asks for it: x (1, B, PIXELS), every image a sequence of one step,
        labels (B,) -> mean cross-entropy in nats, and its gradient by parameter name. Moves batch norm's
        running statistics."""
        seen, products, outputs = self._forward(x[0], True)
        logits = self._head(outputs[-1])
        self.told.append(logits.argmax(axis=1) == labels)
        losses, g = cross_entropy(logits, labels)
        g /= len(labels)
        flat = outputs[-1].reshape(len(labels), -1)
        gradients = {"head_weight": np.einsum("bc,bi->ci", g, flat), "head_bias": g.sum(axis=0)}
        g = np.einsum("bc,ci->bi", g, self._values["head_weight"]).reshape(outputs[-1].shape)
        for place in reversed(range(len(SHAPES))):
            g, own = self._through_norm(g * (outputs[place] > 0), products[place], place)
            gradients.update(own)
            rows = g.reshape(-1, g.shape[-1])
            gradients[f"weight_{place}"] = np.einsum("pc,pk->ck", rows, seen[place])
            if place:
                weight = self._values[f"weight_{place}"]
                g = add_patches(np.einsum("pc,ck->pk", rows, weight), SHAPES[place])
        return float(losses.mean()), gradients

    def _through_norm(
        self, g: np.ndarray, z: np.ndarray, place: int
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """g, the gradient by gain * norm(z) + bias -> that by z, and those by gain and bias by name."""
        images_and_positions = (0, 1, 2)
        if self.kind is None:
            return g, {f"bias_{place}": g.sum(axis=images_and_positions)}
        gain, units = self._values[f"gain_{place}"], z.shape[1:]
        ggain: np.ndarray | None
        gbias: np.ndarray | None
        if self.kind == "batch":
            rows = -1, units[-1]
            gz, ggain, gbias = lnrnn.batch_norm_backward(
                g.reshape(rows), z.reshape(rows), weight=gain, training=True, eps=EPS
            )
        elif self.kind == "layer-shared":
            gbias = g.sum(axis=images_and_positions)
            ggain = (g * lnrnn.layer_norm(z, units, eps=EPS)).sum(axis=images_and_positions)
            gz = lnrnn.layer_norm_backward(g * gain, z, units, eps=EPS)[0]
        else:
            over = units if self.kind == "layer" else units[-1]
            bias = self._values[f"bias_{place}"]
            gz, ggain, gbias = lnrnn.layer_norm_backward(g, z, over, gain, bias, EPS)
        assert ggain is not None and gbias is not None
        return gz.reshape(z.shape), {f"gain_{place}": ggain, f"bias_{place}": gbias}
