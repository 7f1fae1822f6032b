"""Builds training steps of recurrent cells in torch and JAX.

Every builder takes a Problem of training_problem.py and the number of threads, and returns a contender.
Answers have the order of `Problem.results`. torch gets ragged batches as a PackedSequence, sorted and packed
in advance. JAX gets padded batches, because all steps of jax.lax.scan have one size.
"""

from __future__ import annotations

import numpy as np

from peers_rnn import torch_on
from race import Call
from training_problem import Packed, Problem


class _Torch:
    """Code of all torch contenders. It converts arguments to leaves of autograd (packed x, states,
    parameters), and results back to arrays."""

    def __init__(self, problem: Problem, threads: int):
        self.torch, self.problem, self.packed = torch_on(threads), problem, Packed(problem)
        p = problem.for_peers(problem.p)
        arrays = [
            self.packed.pack(problem.x),
            *self.packed.sort(problem.states),
            *(np.ascontiguousarray(p[name]) for name in problem.names),
        ]
        self.leaves = [self.torch.from_numpy(a).requires_grad_() for a in arrays]
        self.gy = self.torch.from_numpy(self.packed.pack(problem.gy))

    def named(self, leaves) -> dict:
        """Returns the parameters among the leaves."""
        return dict(zip(self.problem.names, leaves[1 + self.problem.cell.STATES :], strict=True))

    def sequence(self, *leaves):
        """Returns packed y (N, H), by a loop over the steps."""
        torch, cell, counts = self.torch, self.problem.cell, self.packed.counts
        x, state, p = leaves[0], tuple(leaves[1 : 1 + cell.STATES]), self.named(leaves)
        # Use split and cat, because indexing would allocate a whole sequence at every step of the backward
        # pass.
        parts = [part.split(counts) for part in cell.torch_project(torch, p, x)]
        ys = []
        for t, n in enumerate(counts):
            if t and n < counts[t - 1]:
                state = tuple(s[:n] for s in state)
            state = cell.torch_step(torch, p, tuple(part[t] for part in parts), state)
            ys.append(state[0])
        return torch.cat(ys)

    def contender(self, sequence, leaves=None) -> Call:
        """Returns a contender. sequence(*leaves) returns y. leaves: by default self.leaves."""
        torch, leaves = self.torch, leaves or self.leaves

        def call():
            with torch.enable_grad():
                y = sequence(*leaves)
                return y, *torch.autograd.grad(y, leaves, self.gy.view_as(y))

        def answer():
            shapes = [self.gy.shape, *(leaf.shape for leaf in self.leaves)]
            results = [v.detach().numpy().reshape(s) for v, s in zip(call(), shapes, strict=True)]
            states = 2 + self.problem.cell.STATES
            packed, unsorted = map(self.packed.unpack, results[:2]), self.packed.unsort(results[2:states])
            return *packed, *unsorted, *results[states:]

        return Call(call, answer=answer)


def torch_loop(problem, threads) -> Call:
    peer = _Torch(problem, threads)
    return peer.contender(peer.sequence)


def torch_jit(problem, threads) -> Call:
    peer = _Torch(problem, threads)
    with peer.torch.enable_grad():
        return peer.contender(peer.torch.jit.trace(peer.sequence, tuple(peer.leaves), check_trace=False))


def torch_module(problem, threads) -> Call:
    """Returns a contender: torch.nn.RNN, LSTM or GRU, which have no norm."""
    peer = _Torch(problem, threads)
    torch, cell = peer.torch, problem.cell
    x, *states = peer.leaves[: 1 + cell.STATES]
    module = getattr(torch.nn, cell.NAME)(problem.x.shape[2], problem.gy.shape[2])
    module.load_state_dict({f"{name}_l0": torch.from_numpy(v) for name, v in problem.p.items()})
    parameters = [getattr(module, f"{name}_l0") for name in problem.names]
    if problem.lengths is None:
        x = x.detach().view(problem.x.shape).requires_grad_()
    states = [s.detach()[None].requires_grad_() for s in states]
    counts = torch.tensor(peer.packed.counts)

    def sequence(x, *rest):
        states = tuple(rest[: cell.STATES])
        states = states if cell.STATES > 1 else states[0]
        if problem.lengths is None:
            return module(x, states)[0]
        return module(torch.nn.utils.rnn.PackedSequence(x, counts), states)[0].data

    return peer.contender(sequence, [x, *states, *parameters])


def jax_scan(problem, threads) -> Call:
    """Returns a contender: jax.vjp of jax.lax.scan, jitted.

    Padding has no effect, because gy is 0 past a length.
    """
    import jax

    cell = problem.cell
    parts = ("jax_plain_project", "jax_plain_step") if problem.plain else ("jax_project", "jax_step")
    project, one = (getattr(cell, name) for name in parts)
    p = {name: np.ascontiguousarray(value.T) for name, value in problem.for_peers(problem.p).items()}
    arguments = jax.tree.map(jax.numpy.asarray, (problem.x, problem.states, p, problem.gy * problem.alive))

    def sequence(x, states, p):
        def step(state, projected):
            state = one(jax, p, projected, state)
            return state, state[0]

        return jax.lax.scan(step, states, project(jax, p, x))[1]

    @jax.jit
    def run(x, states, p, gy):
        y, back = jax.vjp(sequence, x, states, p)
        return y, *back(gy)

    def call():
        return jax.block_until_ready(run(*arguments))

    def answer():
        y, gx, gstates, grads = jax.tree.map(np.asarray, call())
        return problem.results(
            np.where(problem.alive, y, 0), gx, gstates, {name: g.T for name, g in grads.items()}
        )

    return Call(call, answer=answer)


SAME_CELL = {"jax": jax_scan, "torch": torch_loop, "torch.jit": torch_jit}
PLAIN = {"torch.nn": torch_module, "jax": jax_scan}
