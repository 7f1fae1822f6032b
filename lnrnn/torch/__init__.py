"""Recurrent networks to train: torch modules with the arguments, the parameters (names, shapes, start values)
and the results of lnrnn's classes, whose docstrings have the equations. Then run `lnrnn.from_torch(module)`.
Needs torch; nothing else in lnrnn does.

On the CPU in float32 they compute with lnrnn's kernels, forward and back, as an operator of torch: with
torch.compile, torch.export, DistributedDataParallel and torch.func.grad. On other devices and dtypes they are
torch operations, one time step after another, with the same results to 1e-5. `module.engine` says which.
`accelerate(model)` has the kernels compute the torch.nn.RNN, LSTM and GRU inside a model.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise ImportError("lnrnn.torch needs PyTorch: pip install torch (https://pytorch.org)") from None

from .accelerate import Report, accelerate
from .modules import GRU, LSTM, RNN

__all__ = ["GRU", "LSTM", "RNN", "Report", "accelerate"]

for _cls in (RNN, LSTM, GRU):
    _cls.__module__ = __name__  # where they are public, and where pickles have always found them
