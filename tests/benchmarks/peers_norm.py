"""Builds contenders for norms and elementwise functions, on each library's own arrays.

There is a class for each library. Its methods take NumPy arrays and return a contender. A class has methods
only for functions of its library."""

from __future__ import annotations

from functools import partial

import numpy as np

from race import Call

EPS = float(np.float32(1e-5))  # ONNX keeps it in float32


class NumPy:
    """NumPy on one thread. It has no norms."""

    def __init__(self, threads: int):
        if threads > 1:
            raise RuntimeError("NumPy's functions run on one thread")

    def elementwise(self, x, name):
        return Call(partial(getattr(np, name), x, out=np.empty_like(x)))  # AttributeError: it has no sigmoid


class Torch:
    """PyTorch. Contenders allocate their output, because PyTorch's functions with out= are slower."""

    def __init__(self, threads: int):
        import torch

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.torch = torch

    def _tensors(self, *arrays):
        """Returns tensors on the same memory. bfloat16 is passed as bits, because torch does not know NumPy's
        dtype."""
        tensor = self.torch.from_numpy
        return [
            tensor(a.view(np.int16)).view(self.torch.bfloat16) if a.dtype == "bfloat16" else tensor(a)
            for a in arrays
        ]

    def layer_norm(self, x, weight, bias):
        x, weight, bias = self._tensors(x, weight, bias)
        function, shape = self.torch.nn.functional.layer_norm, x.shape[-1:]
        return Call(partial(function, x, shape, weight, bias, EPS))

    def elementwise(self, x, name):
        return Call(partial(getattr(self.torch, name), *self._tensors(x)))

    def rms_norm(self, x, weight):
        x, weight = self._tensors(x, weight)
        function, shape = self.torch.nn.functional.rms_norm, x.shape[-1:]
        return Call(partial(function, x, shape, weight, EPS))

    def layer_norm_backward(self, gy, x, weight, bias):
        """Calls the kernel of autograd, with the statistics of the forward pass."""
        gy, x, weight, bias = self._tensors(gy, x, weight, bias)
        shape = x.shape[-1:]
        _, mean, rstd = self.torch.native_layer_norm(x, shape, weight, bias, EPS)
        function = self.torch.ops.aten.native_layer_norm_backward
        return Call(partial(function, gy, x, shape, mean, rstd, weight, bias, [True, True, True]))

    def batch_norm_inference(self, x, mean, var, weight, bias):
        x, mean, var, weight, bias = self._tensors(x, mean, var, weight, bias)
        function = self.torch.nn.functional.batch_norm
        return Call(partial(function, x, mean, var, weight, bias, False, 0.1, EPS))

    def batch_norm_training(self, x, mean, var, weight, bias):
        x, mean, var, weight, bias = self._tensors(x, mean.copy(), var.copy(), weight, bias)
        function = self.torch.nn.functional.batch_norm
        return Call(lambda: (function(x, mean, var, weight, bias, True, 0.1, EPS), mean, var))

    def batch_norm_backward(self, gy, x, mean, var, weight, bias):
        gy, x, mean, var, weight, bias = self._tensors(gy, x, mean.copy(), var.copy(), weight, bias)
        _, saved_mean, saved_rstd = self.torch.native_batch_norm(x, weight, bias, mean, var, True, 0.1, EPS)
        saved, wanted = (saved_mean, saved_rstd), [True, True, True]
        function = self.torch.ops.aten.native_batch_norm_backward
        return Call(partial(function, gy, x, weight, mean, var, *saved, True, EPS, wanted))


class OnnxRuntime:
    """ONNX Runtime with a graph of one operator, called by session.run as most users do."""

    bound = False

    def __init__(self, threads: int):
        import onnx
        import onnxruntime

        self.onnx, self.runtime, self.threads = onnx, onnxruntime, threads

    def _call(self, operator, x, constants, opset=18, **attributes):
        helper, numpy_helper = self.onnx.helper, self.onnx.numpy_helper
        kind = helper.np_dtype_to_tensor_dtype(x.dtype)
        names = [f"c{k}" for k in range(len(constants))]
        node = helper.make_node(operator, ["x", *names], ["y"], **attributes)
        ins, outs = ([helper.make_tensor_value_info(name, kind, x.shape)] for name in "xy")
        graph = helper.make_graph(
            [node], "norm", ins, outs, list(map(numpy_helper.from_array, constants, names))
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        session = onnx_session(model.SerializeToString(), self.threads)
        if not self.bound:
            return Call(partial(session.run, ["y"], {"x": x}))
        binding = session.io_binding()
        value, result = (self.runtime.OrtValue.ortvalue_from_numpy(a) for a in (x, np.empty_like(x)))
        binding.bind_ortvalue_input("x", value)
        binding.bind_ortvalue_output("y", result)

        def answer():
            session.run_with_iobinding(binding)
            return result.numpy()

        return Call(partial(session.run_with_iobinding, binding), answer=answer)

    def layer_norm(self, x, weight, bias):
        return self._call("LayerNormalization", x, [weight, bias], axis=-1, epsilon=EPS)

    def rms_norm(self, x, weight):
        return self._call("RMSNormalization", x, [weight], opset=23, axis=-1, epsilon=EPS)

    def elementwise(self, x, name):
        return self._call(name.capitalize(), x, [])

    def batch_norm_inference(self, x, mean, var, weight, bias):
        return self._call("BatchNormalization", x, [weight, bias, mean, var], epsilon=EPS)


class OnnxRuntimeBound(OnnxRuntime):
    """ONNX Runtime with input and output bound in advance, which avoids allocation and overhead."""

    bound = True


def onnx_session(model: bytes, threads: int):
    """Returns a session with its own pool of `threads` threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class Jax:
    """jax.jit of the textbook formula. The variance is E[x^2] - E[x]^2 as in flax, because XLA computes it in
    one pass. XLA has as many threads as the process had CPUs when XLA was loaded."""

    def __init__(self, threads: int):
        import jax

        self.jax, self.numpy = jax, jax.numpy

    def _call(self, function, *arrays):
        if arrays[0].dtype == np.float64:
            raise TypeError("float64 needs jax_enable_x64, which changes the whole process")
        run, arrays = self.jax.jit(function), [self.numpy.asarray(a) for a in arrays]
        wait = self.jax.block_until_ready
        return Call(lambda: wait(run(*arrays)))

    def _standardize(self, x, axes):
        mean = x.mean(axes, keepdims=True)
        var = self.numpy.maximum((x * x).mean(axes, keepdims=True) - mean * mean, 0)
        return mean, var, self.jax.lax.rsqrt(var + EPS)

    def _wide(self, x):
        return x.astype(self.numpy.promote_types(x.dtype, np.float32))

    def _layer_norm(self, x, weight, bias):
        wide = self._wide(x)
        mean, _, rstd = self._standardize(wide, -1)
        return ((wide - mean) * (rstd * weight) + bias).astype(x.dtype)

    def _batch_norm(self, x, weight, bias):
        axes, shape = _batch_axes(x)
        mean, var, rstd = self._standardize(x, axes)
        y = (x - mean) * (rstd * weight.reshape(shape)) + bias.reshape(shape)
        return y, mean.ravel(), var.ravel()

    def elementwise(self, x, name):
        return self._call(self.jax.nn.sigmoid if name == "sigmoid" else getattr(self.numpy, name), x)

    def layer_norm(self, x, weight, bias):
        return self._call(self._layer_norm, x, weight, bias)

    def rms_norm(self, x, weight):
        def run(x, weight):
            return x * (self.jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + EPS) * weight)

        return self._call(run, x, weight)

    def layer_norm_backward(self, gy, x, weight, bias):
        return self._call(lambda gy, *p: self.jax.vjp(self._layer_norm, *p)[1](gy), gy, x, weight, bias)

    def batch_norm_inference(self, x, mean, var, weight, bias):
        _, shape = _batch_axes(x)

        def run(x, mean, var, weight, bias):
            scale = weight * self.jax.lax.rsqrt(var + EPS)
            return x * scale.reshape(shape) + (bias - mean * scale).reshape(shape)

        return self._call(run, x, mean, var, weight, bias)

    def batch_norm_training(self, x, mean, var, weight, bias):
        unbiased = (n := x.size // x.shape[1]) / (n - 1)

        def run(x, mean, var, weight, bias):
            y, m, v = self._batch_norm(x, weight, bias)
            return y, 0.9 * mean + 0.1 * m, 0.9 * var + 0.1 * unbiased * v

        return self._call(run, x, mean, var, weight, bias)

    def batch_norm_backward(self, gy, x, mean, var, weight, bias):
        def forward(*p):
            return self._batch_norm(*p)[0]

        return self._call(lambda gy, *p: self.jax.vjp(forward, *p)[1](gy), gy, x, weight, bias)


def _batch_axes(x):
    """Returns all axes but the channels, and the shape in which a vector of channels broadcasts."""
    return (0, *range(2, x.ndim)), (1, -1) + (1,) * (x.ndim - 2)


LIBRARIES = {
    "numpy": NumPy, "torch": Torch, "onnxruntime": OnnxRuntime, "onnxruntime bound": OnnxRuntimeBound,
    "jax": Jax,
}  # fmt: skip


def builders(operation: str, threads: int, *arrays) -> dict:
    """Returns {peer: function that builds its contender} of all peers that have the operation."""
    return {
        name: partial(_build, library, operation, threads, arrays)
        for name, library in LIBRARIES.items()
        if hasattr(library, operation)
    }


def _build(library, operation, threads, arrays) -> Call:
    return getattr(library(threads), operation)(*arrays)
