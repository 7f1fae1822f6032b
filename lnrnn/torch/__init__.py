"""Recurrent networks to train: torch modules with the arguments, parameters and results of lnrnn's classes.

Their docstrings have the equations. After training use `lnrnn.from_torch(module)`. Only this part of lnrnn
needs torch.

On the CPU in float32 the modules compute with lnrnn's kernels, forward and back, as an operator of torch.
They support torch.compile, torch.export, DistributedDataParallel and torch.func.grad. On other devices and
dtypes they use torch operations, one time step after another, with the same results to 1e-5. `module.engine`
names the engine. `accelerate(model)` makes the kernels compute the torch.nn.RNN, LSTM and GRU inside a model.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise ImportError("lnrnn.torch needs PyTorch: pip install torch (https://pytorch.org)") from None

from .accelerate import Report, accelerate
from .modules import GRU, LSTM, RNN, SLSTM

__all__ = ["GRU", "LSTM", "RNN", "Report", "SLSTM", "accelerate"]

for _cls in (RNN, LSTM, GRU, SLSTM):
    _cls.__module__ = __name__  # the public module, which pickles name
