"""References of personalised algorithms, in NumPy and float64: Per-FedAvg, pFedMe, clients alone, MTFL.

The format of ``rounds`` and of what is returned is that of ``reference.py``. Clients' models are dicts
by client id, of the clients that have taken part so far.
"""

import numpy as np

from .reference import (
    _add_scaled,
    _aggregation_weights,
    _entry,
    _full_like,
    _map,
    _softmax_cross_entropy,
    _sub,
    _weighted_sum,
    load_problem,
    trajectory_rounds,
)

# Below the square root of the smallest number, so that no second-order term is left.
_IMAGINARY = 1e-200


def _norm(tree):
    """The Euclidean norm over all leaves."""
    return np.sqrt(sum(np.sum(leaf**2) for leaf in tree.values()))


def _parts(batch, count):
    """The contiguous parts of a minibatch (x, y)."""
    x, y = batch
    return list(zip(np.split(x, count), np.split(y, count), strict=True))


# Per-FedAvg ---------------------------------------------------------------------------------


def per_fedavg_trajectory_rounds():
    """The rounds of perfedavg.json: a minibatch is the first one and then the second one of a step."""
    problem, rounds = load_problem(), trajectory_rounds("perfedavg")
    for t, rnd in enumerate(rounds):
        for client, batches in zip(rnd["clients"], rnd["batches"], strict=True):
            features, labels = problem["X"][client], problem["y"][client]
            for k, (x, y) in enumerate(batches):
                rows = problem["second_batches"][t][client][k]
                batches[k] = np.concatenate([x, features[rows]]), np.concatenate([y, labels[rows]])
    return rounds


def hessian_vector_product(gradient, params, vector, x, y):
    """H v to the last digit: a gradient at y + i h v has h H v for its imaginary part."""
    moved = _map(lambda p, v: p + 1j * _IMAGINARY * v, params, vector)
    return _map(lambda g: g.imag / _IMAGINARY, gradient(moved, x, y)[1])


def central_difference(gradient, params, vector, x, y, step):
    """H v by two gradients, d = step (1 + ||y||) / ||v||."""
    d = step * (1.0 + _norm(params)) / _norm(vector)
    ahead = gradient(_add_scaled(params, d, vector), x, y)[1]
    behind = gradient(_add_scaled(params, -d, vector), x, y)[1]
    return _map(lambda a, b: (a - b) / (2.0 * d), ahead, behind)


def per_fedavg(
    params, rounds, gradient, *, alpha, lr, hessian="first_order", step=1e-2, server_lr=1.0,
    parts=_parts,
):  # fmt: skip
    """Per-FedAvg: y - lr (I - alpha H(y; b3)) g(y - alpha g(y; b1); b2).

    Fallah et al., Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
    Meta-Learning Approach, NeurIPS 2020, Algorithm 1. 'first_order' leaves out H; 'hessian_free' has
    a central difference for H v. ``parts(batch, count)`` cuts a minibatch into b1, b2 and b3.
    ``loss`` is at y, on b1.
    """
    x, history = params, []
    for rnd in rounds:
        deltas, losses = [], []
        for batches in rnd["batches"]:
            y = x
            for batch in batches:
                b1, b2, *b3 = parts(batch, 2 if hessian == "first_order" else 3)
                loss, g = gradient(y, *b1)
                _, v = gradient(_add_scaled(y, -alpha, g), *b2)
                direction = v
                if hessian == "hessian_free":
                    bent = central_difference(gradient, y, v, *b3[0], step)
                    direction = _add_scaled(v, -alpha, bent)
                if hessian == "exact":
                    bent = hessian_vector_product(gradient, y, v, *b3[0])
                    direction = _add_scaled(v, -alpha, bent)
                y = _add_scaled(y, -lr, direction)
                losses.append(loss)
            deltas.append(_sub(y, x))
        x = _add_scaled(x, server_lr, _weighted_sum(_aggregation_weights(rnd), deltas))
        history.append(_entry(rnd, x, deltas, losses))
    return history


# Clients with models of their own -----------------------------------------------------------


def pfedme(params, rounds, gradient, *, lam, lr, inner_lr, inner_steps, server_lr=1.0):
    """pFedMe: y - lr lam (y - theta), theta by SGD on f + lam/2 ||theta - y||^2.

    T. Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, Algorithm 1,
    with theta found by ``inner_steps`` steps on the minibatch, from where it was in the step before.
    Returns ``personal``, each client's last theta. ``loss`` is at theta before its inner steps.
    """
    x, history, personal = params, [], {}
    for rnd in rounds:
        deltas, losses, personal = [], [], dict(personal)
        for client, batches in zip(rnd["clients"], rnd["batches"], strict=True):
            y, theta = x, x
            for batch in batches:
                losses.append(gradient(theta, *batch)[0])
                for _ in range(inner_steps):
                    _, g = gradient(theta, *batch)
                    pulled = _map(lambda g, t, y: g + lam * (t - y), g, theta, y)
                    theta = _add_scaled(theta, -inner_lr, pulled)
                y = _map(lambda y, t: y - lr * lam * (y - t), y, theta)
            personal[client] = theta
            deltas.append(_sub(y, x))
        mean_y = _add_scaled(x, 1.0, _weighted_sum(_aggregation_weights(rnd), deltas))
        x = _map(lambda x, m: (1.0 - server_lr) * x + server_lr * m, x, mean_y)
        history.append(_entry(rnd, x, deltas, losses, personal=personal))
    return history


def independent(params, rounds, gradient, *, lr, beta=0.0):
    """Clients that train alone, by SGD with momentum m+ = beta m + (1 - beta) g and y - lr m+.

    Returns ``personal``, their models, and ``m``; neither ever forgets. ``params`` stay as they are.
    """
    history, personal, m = [], {}, {}
    for rnd in rounds:
        losses, personal, m = [], dict(personal), dict(m)
        for client, batches in zip(rnd["clients"], rnd["batches"], strict=True):
            y = personal.get(client, params)
            own = m.get(client, _full_like(params, 0.0))
            for batch in batches:
                loss, g = gradient(y, *batch)
                own = _map(lambda m, g: beta * m + (1.0 - beta) * g, own, g)
                y = _add_scaled(y, -lr, own)
                losses.append(loss)
            personal[client], m[client] = y, own
        zero = [_full_like(params, 0.0)] * len(rnd["clients"])
        history.append(_entry(rnd, params, zero, losses, personal=personal, m=m))
    return history


# MTFL -----------------------------------------------------------------------------------------

STATISTICS = ("mu", "var")


def batch_norm_mlp(params, x, y):
    """Loss, gradients and next statistics of logits = (gamma z + beta) w2 + b2, z normalised tanh.

    z = (h - mean) / sqrt(variance + 1e-5) over the minibatch, h = tanh(x w1 + b1). A tenth of the mean
    and of the unbiased variance goes into ``mu`` and ``var``, as in torch.
    """
    h = np.tanh(x @ params["w1"] + params["b1"])
    mean, width = h.mean(axis=0), np.sqrt(h.var(axis=0) + 1e-5)
    z = (h - mean) / width
    out = params["gamma"] * z + params["beta"]
    loss, d_logits = _softmax_cross_entropy(out @ params["w2"] + params["b2"], y)
    d_out = d_logits @ params["w2"].T
    d_z = params["gamma"] * d_out
    # Every entry of a column moves the column's mean and its variance.
    d_h = (d_z - d_z.mean(axis=0) - z * (d_z * z).mean(axis=0)) / width
    d_hidden = d_h * (1.0 - h**2)
    gradients = {
        "w1": x.T @ d_hidden,
        "b1": d_hidden.sum(axis=0),
        "gamma": (d_out * z).sum(axis=0),
        "beta": d_out.sum(axis=0),
        "w2": out.T @ d_logits,
        "b2": d_logits.sum(axis=0),
    }
    unbiased = h.var(axis=0, ddof=1)
    moved = {"mu": 0.9 * params["mu"] + 0.1 * mean, "var": 0.9 * params["var"] + 0.1 * unbiased}
    return loss, gradients, moved


def mtfl(params, rounds, *, private, lr, num_clients, beta1=None, beta2=None, eps=None):
    """MTFL(FedAvg), or with ``beta1`` MTFL(FedAvg-Adam), of ``batch_norm_mlp``.

    Mills et al., Multi-Task Federated Learning for Personalised Deep Neural Networks in Edge Computing,
    Algorithm 1: a client puts its own values of the ``private`` entries, and their moments, in place of
    those received, trains, and keeps them. The server averages every entry, its step counter too.
    Returns ``personal`` by client, with ``m`` and ``v`` the server's moments and ``personal_m`` and
    ``personal_v`` the clients'. ``deltas`` are those of all entries.
    """
    trained = [name for name in params if name not in STATISTICS]
    x, step, history = params, 0.0, []
    m = v = _full_like({name: params[name] for name in trained}, 0.0)
    own = {c: {name: params[name] for name in private} for c in range(num_clients)}
    own_m = own_v = {c: {n: m[n] for n in private if n in trained} for c in range(num_clients)}
    for rnd in rounds:
        found, losses = [], []
        own, own_m, own_v = dict(own), dict(own_m), dict(own_v)
        for client, batches in zip(rnd["clients"], rnd["batches"], strict=True):
            y, count = {**x, **own[client]}, step
            mi, vi = {**m, **own_m[client]}, {**v, **own_v[client]}
            for batch in batches:
                loss, g, moved = batch_norm_mlp(y, *batch)
                direction = g
                if beta1 is not None:
                    count += 1.0
                    mi = _map(lambda m, g: beta1 * m + (1.0 - beta1) * g, mi, g)
                    vi = _map(lambda v, g: beta2 * v + (1.0 - beta2) * g**2, vi, g)
                    first, second = 1.0 - beta1**count, 1.0 - beta2**count
                    direction = _map(
                        lambda m, v, a=first, b=second: m / a / (np.sqrt(v / b) + eps), mi, vi
                    )
                y = {**_add_scaled({n: y[n] for n in trained}, -lr, direction), **moved}
                losses.append(loss)
            own[client] = {name: y[name] for name in private}
            own_m[client], own_v[client] = ({n: s[n] for n in own_m[client]} for s in (mi, vi))
            found.append((_sub(y, x), mi, vi, count))
        weights = _aggregation_weights(rnd)
        deltas, ms, vs, counts = zip(*found, strict=True)
        x = _add_scaled(x, 1.0, _weighted_sum(weights, deltas))
        m, v = _weighted_sum(weights, ms), _weighted_sum(weights, vs)
        step = float(np.dot(weights, counts))
        kept = {"personal": own, "m": m, "v": v, "personal_m": own_m, "personal_v": own_v}
        history.append(_entry(rnd, x, deltas, losses, step=step, **kept))
    return history
