"""Softmax regression with a norm, and its Fisher information F."""

from dataclasses import dataclass, replace

import numpy as np
from study_data import CLASSES, PIXELS, load_digits

import lnrnn

EPS = 1e-5  # in training; F is computed with eps 0
BATCH = 32
FACTORS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # of weights scaled by hand


@dataclass(frozen=True)
class Regression:
    """Softmax regression, logits = gain * norm(W x) + bias: weight (C, I), gain (C,), bias (C,), float64.

    Weight norm (WN; Salimans, Kingma 2016) divides W x by the length of each row of W. Without a norm the
    gain is always 1."""

    norm: str
    weight: np.ndarray
    gain: np.ndarray
    bias: np.ndarray
    eps: float = EPS

    def normalised(self, z):
        """Returns norm(z) for z = W x (N, C). Batch norm has the statistics of these N images."""
        if self.norm == "LN":
            return lnrnn.layer_norm(z, z.shape[1], eps=self.eps)
        if self.norm == "BN":
            return lnrnn.batch_norm(z, None, None, training=True, eps=self.eps)
        return z / lengths(self.weight) if self.norm == "WN" else z

    def through_norm(self, g, z):
        """Returns the derivative of norm(z) times g, (N, C). The derivative is symmetric, so the library's
        backward function also computes forward derivatives. Not for WN, which depends on W too."""
        if self.norm == "LN":
            return lnrnn.layer_norm_backward(g, z, z.shape[1], eps=self.eps)[0]
        if self.norm == "BN":
            return lnrnn.batch_norm_backward(g, z, training=True, eps=self.eps)[0]
        return g

    def products(self, x):
        return np.einsum("ni,ci->nc", x, self.weight)

    def logits(self, x):
        return self.gain * self.normalised(self.products(x)) + self.bias

    def accuracy(self, x, labels, trained):
        """Returns accuracy in inference mode. Batch norm has the statistics of ``trained`` (M, I)."""
        if self.norm != "BN":
            return (self.logits(x).argmax(axis=1) == labels).mean()
        z = self.products(trained)
        mean, var = z.mean(axis=0), z.var(axis=0)
        found = lnrnn.batch_norm(self.products(x), mean, var, self.gain, self.bias, eps=self.eps)
        return (found.argmax(axis=1) == labels).mean()

    def gradients(self, x, labels):
        """Returns the gradients of the mean cross-entropy over x (N, I) for weight, gain and bias."""
        z = self.products(x)
        n = self.normalised(z)
        g = softmax(self.gain * n + self.bias)
        g[np.arange(len(x)), labels] -= 1
        g /= len(x)
        gn = g * self.gain
        if self.norm == "WN":
            length = lengths(self.weight)[:, None]
            unit = self.weight / length
            gw = np.einsum("nc,ni->ci", gn, x)
            gw = (gw - unit * np.einsum("ci,ci->c", gw, unit)[:, None]) / length
        else:
            gw = np.einsum("nc,ni->ci", self.through_norm(gn, z), x)
        ggain = np.zeros_like(self.gain) if self.norm == "no norm" else np.einsum("nc,nc->c", g, n)
        return {"weight": gw, "gain": ggain, "bias": g.sum(axis=0)}

    def scaled(self, factor):
        return replace(self, weight=factor * self.weight)

    def groups(self, weight):
        """Returns the vectors in weight (C, I) whose length changes no output: rows, or for LN all."""
        return weight.reshape(1, -1) if self.norm == "LN" else weight

    def derivative(self, z):
        """Returns the derivative of norm(z)[n, k] with respect to z[n, c], (N, K, C). Not for BN and WN."""
        units = np.eye(z.shape[1])
        return np.stack([self.through_norm(np.broadcast_to(unit, z.shape), z) for unit in units], axis=2)

    def root(self, x):
        """Returns A (N, K, C, I) with F = A'A, summed over images and classes. A is the derivative of logits
        with respect to W, minus its mean under the softmax p, times the root of p / N."""
        z, p = self.products(x), softmax(self.logits(x))
        if self.norm in ("LN", "no norm"):
            a = np.einsum("nkc,ni->nkci", self.derivative(z), x)
        else:
            a, n, length = np.zeros((*z.shape, *self.weight.shape)), self.normalised(z), lengths(self.weight)
            for c, row in enumerate(self.weight):
                if self.norm == "WN":
                    a[:, c, c] = (x - n[:, c, None] * row / length[c]) / length[c]
                else:
                    a[:, c, c] = self.through_norm(x, np.repeat(z[:, c, None], x.shape[1], axis=1))
        a *= self.gain[:, None, None]
        a -= np.einsum("nk,nkci->nci", p, a)[:, None]
        a *= np.sqrt(p / len(x))[:, :, None, None]
        return a

    def gain_curvature(self, x):
        """Returns F for the gain of one class, averaged over classes. Without a norm: for the length of a row
        of W, which corresponds to a gain."""
        p, n = softmax(self.logits(x)), self.normalised(self.products(x))
        if self.norm == "no norm":
            n = n / lengths(self.weight)
        return (p * (1 - p) * n**2).mean()

    def product_form(self, x):
        """Returns F (CI, CI) as a mean of Kronecker products of C(x) and x x', for LN and for no norm. C(x)
        is D' (diag(p) - p p') D, and D is the derivative of the logits with respect to W x."""
        z, p = self.products(x), softmax(self.logits(x))
        d = self.gain[:, None] * self.derivative(z)
        covariance = np.eye(len(self.gain)) * p[:, None] - p[:, :, None] * p[:, None]
        c = np.einsum("nka,nkl,nlb->nab", d, covariance, d)
        f = np.einsum("nab,ni,nj->aibj", c, x, x, optimize=False) / len(x)
        return f.reshape(self.weight.size, self.weight.size)


def softmax(logits):
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def lengths(rows):
    return np.sqrt(np.einsum("gi,gi->g", rows, rows))


def angles(a, b):
    """Returns the angles between rows of a and b, in radians. Angles follow from the distance of unit
    vectors, because the cosine of a small angle is 1 to the last bit."""
    apart = a / lengths(a)[:, None] - b / lengths(b)[:, None]
    return 2 * np.arcsin(np.minimum(lengths(apart) / 2, 1))


def size(a):
    return (a**2).sum()


def divergence(model, other, x):
    """Returns the Kullback-Leibler divergence of other's probabilities from model's, averaged over x."""
    p, q = softmax(model.logits(x)), softmax(other.logits(x))
    return (p * np.log(p / q)).sum(axis=1).mean()


def second_difference(model, x, direction, step=1e-3):
    """Returns the second difference of the divergence along a direction d of the weights: about d' F d."""
    ends = [replace(model, weight=model.weight + sign * step * direction) for sign in (1, -1)]
    return sum(divergence(model, end, x) for end in ends) / step**2


# --- training and measuring ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Images:
    """A seed's training images, held-out images, and order of training, (updates, BATCH)."""

    x: np.ndarray
    labels: np.ndarray
    held_x: np.ndarray
    held_labels: np.ndarray
    order: np.ndarray


def images_of(seed, quick, epochs):
    data, rng = load_digits(), np.random.default_rng([1, seed])
    count, epochs = (160, 2) if quick else (800, epochs)
    held, trained = data.held(seed), data.learnt(seed)[:count]
    order = [rng.permutation(count)[: count - count % BATCH].reshape(-1, BATCH) for _ in range(epochs)]
    x, labels = data.train_x.astype(np.float64), data.train_labels
    return Images(x[trained], labels[trained], x[held], labels[held], np.concatenate(order))


def initial(norm, seed):
    """Returns a model with normal weights, so that a row's length is about 1, gains 1 and biases 0."""
    weight = np.random.default_rng(seed).standard_normal((CLASSES, PIXELS)) / PIXELS**0.5
    return Regression(norm, weight, np.ones(CLASSES), np.zeros(CLASSES))


def updated(model, images, chosen, steps):
    """Returns weight, gain and bias after one update, and the gradient of the weight."""
    gradients = model.gradients(images.x[chosen], images.labels[chosen])
    parameters = {"weight": model.weight, "gain": model.gain, "bias": model.bias}
    return steps.step(parameters, gradients), gradients["weight"]


def train(model, images, steps, hold=False):
    """Returns (the trained model, growth, angles, the largest cosine between one of `model.groups` and its
    gradient). growth (U + 1,): log(length of weights / initial length), averaged over groups. angles (U,):
    the mean angle of each update. hold: scale groups to initial lengths after each update."""
    start = lengths(model.groups(model.weight))
    growth, turn, cosine = [0.0], [], 0.0
    for chosen in images.order:
        moved, gradient = updated(model, images, chosen, steps)
        old, g, new = (model.groups(w) for w in (model.weight, gradient, moved["weight"]))
        dots = np.abs(np.einsum("gi,gi->g", old, g))
        cosine = max(cosine, (dots / np.maximum(lengths(old) * lengths(g), 1e-300)).max())
        turn.append(angles(old, new).mean())
        if hold:
            new = new * (start / lengths(new))[:, None]
        model = replace(model, weight=new.reshape(model.weight.shape), gain=moved["gain"], bias=moved["bias"])
        growth.append(np.log(lengths(new) / start).mean())
    return model, np.array(growth), np.array(turn), cosine


def turned_at_once(model, images, steps):
    """Returns the angle by which one update turns `model.groups`, on average."""
    moved, _ = updated(model, images, images.order[0], steps)
    return angles(model.groups(model.weight), model.groups(moved["weight"])).mean()


def by_hand(model, images, rates, optimisers):
    """Multiplies a trained model's weights by each of FACTORS.

    Returns {name of a measure: values, one for each factor}.
    """
    model, x, found = replace(model, eps=0.0), images.held_x, []
    for factor in FACTORS:
        longer = model.scaled(factor)
        a = longer.root(x)
        # Without a norm, multiply the images and divide W, so that the outputs stay.
        other = model.scaled(1 / factor) if model.norm == "no norm" else model
        groups = longer.groups(longer.weight)
        units = np.eye(len(groups))[:, :, None] * groups / lengths(groups)[:, None]
        along = [size(np.einsum("nkci,ci->nk", a, unit.reshape(model.weight.shape))) for unit in units]
        values = {
            "moved": np.abs(longer.logits(x) - model.logits(x)).max(),
            "weight": size(a) / model.weight.size,  # averaged over all directions
            "itself": np.mean(along),
            "gain": longer.gain_curvature(x),
            "gain, images": other.gain_curvature(factor * x),
        }
        if model.norm in ("BN", "WN"):
            first = np.ones((CLASSES, 1))
            first[0] = factor
            a = model.scaled(first).root(x)
            values["own"] = size(a[:, :, 0]) / PIXELS
            values["cross"] = size(np.einsum("nki,nkj->ij", a[:, :, 0], a[:, :, 1])) ** 0.5
        for name, rate in rates.items():  # steps are small, so that the angle is proportional to the rate
            values[f"turn, {name}"] = turned_at_once(longer, images, optimisers[name](1e-3 * rate))
        found.append(values)
    return {name: np.array([values[name] for values in found]) for name in found[0]}


def product_error(model, x, seed):
    """Returns the relative error of the product form, by second differences along a random direction."""
    d = np.random.default_rng([2, seed]).standard_normal(model.weight.size)
    d *= lengths(model.groups(model.weight)).max() / np.sqrt(size(d))
    expected = second_difference(model, x, d.reshape(model.weight.shape))
    return abs(np.einsum("i,ij,j->", d, model.product_form(x), d) / expected - 1)
