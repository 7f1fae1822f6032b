"""Trains a policy with memory by recurrent PPO: one call of the LSTM for each update, with resets=.

    python examples/recurrent_ppo.py [--updates 30]

Needs torch. An episode shows +1 or -1 in its first step, and asks for this sign in its last one, up to ten
steps later. A rollout has steps of many episodes. `resets` is True where an episode begins: there the LSTM
starts anew, in the rollout and in the update. Other implementations loop over the steps, and multiply states
by zero. At the end the script compares such a loop with the one call.
"""

import argparse
import time

import numpy as np
import torch

import lnrnn.torch

STEPS, ENVIRONMENTS, UNITS = 64, 32, 32


class Recall:
    """Many episodes side by side. An observation has three numbers: the sign, if it begins, if it ends."""

    def __init__(self, count, rng):
        self.rng, self.left, self.sign = rng, np.zeros(count, int), np.zeros(count)
        self.starts = np.ones(count, bool)
        self._begin()

    def _begin(self):
        """Begins new episodes at `starts`."""
        count = self.starts.sum()
        self.left[self.starts] = self.rng.integers(2, 11, count)
        self.sign[self.starts] = self.rng.choice([-1, 1], count)

    def observe(self):
        seen = np.stack([self.sign * self.starts, self.starts, self.left == 1], 1)
        return torch.from_numpy(seen.astype(np.float32))

    def act(self, actions):
        """Returns rewards: in the last step of an episode 1 or -1, else 0."""
        last = self.left == 1
        reward = np.where(last, np.where(actions.numpy() * 2 - 1 == self.sign, 1, -1), 0)
        self.left -= 1
        self.starts = last
        self._begin()
        return torch.from_numpy(reward.astype(np.float32))


class Policy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = lnrnn.torch.LSTM(3, UNITS, norm="layer")
        self.actor, self.critic = torch.nn.Linear(UNITS, 2), torch.nn.Linear(UNITS, 1)

    def forward(self, x, state, resets):
        """x (T, B, 3), resets (T, B). Returns the distribution of actions, values (T, B) and the state."""
        y, state = self.lstm(x, state, resets=resets)
        return torch.distributions.Categorical(logits=self.actor(y)), self.critic(y)[..., 0], state


def step_by_step(lstm, x, state, resets):
    """Returns the results of lstm(x, state, resets=resets), from a loop over the steps."""
    outputs = []
    for x_t, resets_t in zip(x, resets, strict=True):
        kept = 1 - resets_t.float()[:, None]
        y, state = lstm(x_t[None], tuple(kept * part for part in state))
        outputs.append(y)
    return torch.cat(outputs), state


@torch.no_grad()
def rollout(policy, environment, state):
    """Returns tensors (T, B) by name, with the state before the first step, and the state after the last."""
    lists = {name: [] for name in ("x", "resets", "actions", "chances", "values", "rewards")}
    begin = state
    for _ in range(STEPS):
        x, resets = environment.observe(), torch.from_numpy(environment.starts.copy())
        distribution, value, state = policy(x[None], state, resets[None])
        action = distribution.sample()
        rewards = environment.act(action[0])
        row = x, resets, action[0], distribution.log_prob(action)[0], value[0], rewards
        for known, one in zip(lists.values(), row, strict=True):
            known.append(one)
    found = {name: torch.stack(rows) for name, rows in lists.items()} | {"state": begin}
    starts = torch.from_numpy(environment.starts.copy())
    last = policy(environment.observe()[None], state, starts[None])[1][0]
    found["advantages"] = advantages(found, last, starts)
    return found, state


def advantages(found, value, starts, discount=0.95, decay=0.95):
    """Generalised advantage estimation (Schulman et al. 2016). value, starts: those after the last step."""
    result, sum_ = [], torch.zeros(ENVIRONMENTS)
    for t in reversed(range(STEPS)):
        goes_on = (~starts).float()
        error = found["rewards"][t] + discount * value * goes_on - found["values"][t]
        sum_ = error + discount * decay * goes_on * sum_
        result.append(sum_)
        value, starts = found["values"][t], found["resets"][t]
    return torch.stack(result[::-1])


def update(policy, optimiser, found, epochs=4, clip=0.2):
    gain, target = found["advantages"], found["advantages"] + found["values"]
    gain = (gain - gain.mean()) / (gain.std() + 1e-8)
    for _ in range(epochs):
        distribution, values, _ = policy(found["x"], found["state"], found["resets"])
        ratio = (distribution.log_prob(found["actions"]) - found["chances"]).exp()
        surrogate = torch.minimum(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain).mean()
        loss = (values - target).square().mean() / 2 - surrogate - 0.01 * distribution.entropy().mean()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        optimiser.step()


def gradients(call, lstm, found):
    """Returns y and the gradients of the parameters, and the seconds of CPU time that both took."""
    begin = time.thread_time()
    y, _ = call(lstm, found["x"], found["state"], found["resets"])
    grads = torch.autograd.grad(y.square().sum(), [*lstm.parameters()])
    return [y.detach(), *grads], time.thread_time() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--updates", type=int, default=30)
    updates = parser.parse_args().updates
    torch.manual_seed(0)
    torch.set_num_threads(1)
    policy, environment = Policy(), Recall(ENVIRONMENTS, np.random.default_rng(0))
    optimiser = torch.optim.Adam(policy.parameters(), lr=3e-3)
    state = tuple(torch.zeros(1, ENVIRONMENTS, UNITS) for _ in range(2))
    for k in range(updates):
        found, state = rollout(policy, environment, state)
        update(policy, optimiser, found)
        ended = found["rewards"] != 0
        if k % 10 == 9 or k + 1 == updates:
            right = (found["rewards"][ended] > 0).float().mean()
            print(f"update {k + 1}: {right:.1%} of {ended.sum()} episodes end right")

    one = [gradients(lambda lstm, x, s, r: lstm(x, s, resets=r), policy.lstm, found) for _ in range(5)]
    many = [gradients(step_by_step, policy.lstm, found) for _ in range(5)]
    difference = max(
        ((a - b).abs().max() / b.abs().max()).item() for a, b in zip(one[0][0], many[0][0], strict=True)
    )
    ratio = min(seconds for _, seconds in many) / min(seconds for _, seconds in one)
    print(f"one call or {STEPS}: relative difference {difference:.1e}; one call is {ratio:.1f} times as fast")


if __name__ == "__main__":
    main()
