"""Trains a layer-normalised LSTM in torch, with lnrnn's kernels, to add two numbers.

    python examples/train_in_ten_lines.py

Needs torch. Each sequence has 30 numbers. Two of them are marked, and the target is their sum.
"""

import torch

import lnrnn.torch

torch.manual_seed(0)
rnn, head = lnrnn.torch.LSTM(2, 64, norm="layer"), torch.nn.Linear(64, 1)
optimiser = torch.optim.Adam([*rnn.parameters(), *head.parameters()], lr=5e-3)
for _ in range(400):
    numbers, marks = torch.rand(30, 64), torch.zeros(30, 64)
    marks.scatter_(0, torch.rand(30, 64).topk(2, dim=0).indices, 1.0)
    _, (h, _) = rnn(torch.stack([numbers, marks], 2))
    loss = (head(h[-1])[:, 0] - (numbers * marks).sum(0)).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
print(f"engine {rnn.engine}; mean square error {loss.item():.4f}, of the constant answer 1: {1 / 6:.4f}")
