"""References of personalised algorithms, in NumPy and float64: Per-FedAvg, pFedMe, clients alone.

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
