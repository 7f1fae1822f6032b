"""A training step of a recurrent cell in the libraries that people train with: y, and the gradients of x, of
the initial states and of all parameters.

Every builder takes (problem, threads), see training_problem.py, and gives a contender whose answer is in the
order of `Problem.results`. torch gets ragged batches as PackedSequence has them, sorted and packed before;
jax.lax.scan, whose steps are all of one size, gets them padded.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from peers_rnn import torch_on
from race import Call
from training_problem import Packed, Problem


class _Torch:
    """What the torch contenders share: leaves (x packed, states, parameters by name), the gradient of y, and
    the way back from packed results."""

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
        """The parameters among the leaves."""
        return dict(zip(self.problem.names, leaves[1 + self.problem.cell.STATES :], strict=True))

    def sequence(self, *leaves, step=None):
        """y (N, H) by autograd's own loop. step: `torch_step` of the cell, or something like it."""
        torch, cell, counts = self.torch, self.problem.cell, self.packed.counts
        step = step or partial(cell.torch_step, torch)
        x, state, p = leaves[0], tuple(leaves[1 : 1 + cell.STATES]), self.named(leaves)
        # split and cat: indexing would make a gradient of the whole sequence's size at every step.
        parts = [part.split(counts) for part in cell.torch_project(torch, p, x)]
        ys = []
        for t, n in enumerate(counts):
            if t and n < counts[t - 1]:
                state = tuple(s[:n] for s in state)
            state = step(p, tuple(part[t] for part in parts), state)
            ys.append(state[0])
        return torch.cat(ys)

    def contender(self, sequence, leaves=None) -> Call:
        """sequence(*leaves) gives y; leaves may have dimensions of size 1 more than ours."""
        torch, leaves = self.torch, leaves or self.leaves

        def call():
            with torch.enable_grad():
                y = sequence(*leaves)
                return y, *torch.autograd.grad(y, leaves, self.gy.view_as(y))

        def answer():
            found = [v.detach().numpy() for v in call()]
            found = [
                v.reshape(self.gy.shape if k == 0 else self.leaves[k - 1].shape) for k, v in enumerate(found)
            ]
            states = 2 + self.problem.cell.STATES
            packed, unsorted = map(self.packed.unpack, found[:2]), self.packed.unsort(found[2:states])
            return *packed, *unsorted, *found[states:]

        return Call(call, answer=answer)


def torch_loop(problem, threads) -> Call:
    """The loop as users write it, without a compiler."""
    peer = _Torch(problem, threads)
    return peer.contender(peer.sequence)


def torch_jit(problem, threads) -> Call:
    """The loop unrolled by tracing."""
    peer = _Torch(problem, threads)
    with peer.torch.enable_grad():
        return peer.contender(peer.torch.jit.trace(peer.sequence, tuple(peer.leaves), check_trace=False))


def torch_compiled(problem, threads) -> Call:
    """The loop over a step that torch.compile has fused. One over the whole loop, unrolled, takes minutes to
    compile and then as long as this."""
    peer = _Torch(problem, threads)
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1  # no processes that stay
    cell, names = problem.cell, problem.names

    def step(*tensors):
        parts = len(tensors) - cell.STATES - len(names)
        p = dict(zip(names, tensors[parts + cell.STATES :], strict=True))
        return cell.torch_step(torch, p, tensors[:parts], tensors[parts : parts + cell.STATES])

    compiled = torch.compile(step, dynamic=False)
    return peer.contender(
        partial(peer.sequence, step=lambda p, projected, state: compiled(*projected, *state, *p.values()))
    )


def torch_module(problem, threads) -> Call:
    """torch.nn.RNN, LSTM or GRU: the plain cell."""
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
    """jax.vjp through jax.lax.scan, jitted, all arguments given. Past a length gy is 0: then nothing that is
    computed there has an effect."""
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
