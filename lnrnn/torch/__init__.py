"""Recurrent networks to train: torch modules with the arguments, parameters and results of lnrnn's classes.

The docstrings of lnrnn.RNN, LSTM and GRU have the equations. After training, `lnrnn.from_torch(module)`
converts a module to one of these classes. Only lnrnn.torch needs PyTorch.

On the CPU in float32 the modules compute with lnrnn's C kernels, forward and back, as an operator of torch.
They support torch.compile, torch.export, DistributedDataParallel and torch.func.grad. On other devices and
dtypes they use torch operations, one time step after another, with the same results to 1e-5. `module.engine`
says which of the two computes. `accelerate(model)` changes a model so that the C kernels compute its
torch.nn.RNN, LSTM and GRU.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise ImportError("lnrnn.torch needs PyTorch: pip install torch (https://pytorch.org)") from None

from .accelerate import Report, accelerate
from .modules import GRU, LSTM, RNN, SLSTM, LiGRU, from_network

__all__ = ["GRU", "LSTM", "LiGRU", "RNN", "Report", "SLSTM", "accelerate", "from_network"]
__dir__ = __all__.copy  # dir() lists public names only

for _cls in (RNN, LSTM, GRU, LiGRU, SLSTM):
    _cls.__module__ = __name__  # pickles name the public module
