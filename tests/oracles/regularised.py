"""References of algorithms that add a term to the clients' loss, in NumPy and float64.

FedDyn, AdaBest and FedDC add linear and quadratic terms in y; FedMAX and MOON add terms in the
features of the MLP of ``reference.py``. The format of ``rounds`` and of what is returned is that of
``reference.py``; besides, ``objective`` is the mean over the round's minibatches of the loss
with the added term (and without weight decay), where ``loss`` is without it.

Clients' states are dicts by client id, of the clients that have taken part so far; a missing one
is zero unless the algorithm says otherwise. Sums over 1/N are uniform; "mean y" has the
aggregation weights. Weight decay is added after the term's gradient, and no state sees it but
those that are made of displacements.
"""

import numpy as np

from .reference import (
    _add_scaled,
    _aggregation_weights,
    _entry,
    _full_like,
    _local_sgd,
    _map,
    _sub,
    _weighted_sum,
)


def _dot(a, b):
    """<a, b> over all leaves."""
    return float(sum(np.sum(a[k] * b[k]) for k in a))


def _with_term(gradient, term, task_losses):
    """The gradient of loss + term(y, features); the plain losses are appended to a list."""

    def combined(y, features, labels):
        loss, g = gradient(y, features, labels)
        task_losses.append(loss)
        value, d_value = term(y, features)
        return loss + value, _add_scaled(g, 1.0, d_value)

    return combined


def _local_sgd_with_terms(x, rnd, gradient, lr, weight_decay, term_of):
    """Local SGD of the cohort from x; ``term_of(client)`` is the client's term.

    Return the local models in the cohort's order, the losses and the objectives.
    """
    models, losses, objectives = [], [], []
    for client, batches in zip(rnd["clients"], rnd["batches"], strict=True):
        combined = _with_term(gradient, term_of(client), losses)
        y, _, values = _local_sgd(x, batches, combined, lr, weight_decay, lambda g, y: g)
        models.append(y)
        objectives += values
    return models, losses, objectives


def _record(rnd, x, start, models, losses, objectives, **state):
    """One round's record, with the mean objective."""
    deltas = [_sub(y, start) for y in models]
    return _entry(rnd, x, deltas, losses, objective=float(np.mean(objectives)), **state)


# Linear and quadratic terms -----------------------------------------------------------------


def feddyn(params, rounds, gradient, *, alpha, lr, num_clients, weight_decay=0.0):
    """FedDyn: local loss - <h_i, y> + alpha/2 ||y - x||^2.

    Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, Algorithm 1, with
    the local problem solved approximately by the given minibatch steps.
    h_i+ = h_i - alpha (y_i - x), h+ = h - (alpha/N) sum_{i in S} (y_i - x) and
    x+ = sum_i w_i y_i - h+/alpha. Returns ``h`` and ``client_h``.
    """
    x, history = params, []
    h, client_h = _full_like(params, 0.0), {}
    for rnd in rounds:

        def term_of(client, x=x, client_h=client_h):
            h_i = client_h.get(client, _full_like(x, 0.0))

            def term(y, features):
                move = _sub(y, x)
                value = 0.5 * alpha * _dot(move, move) - _dot(h_i, y)
                return value, _sub(_map(lambda d: alpha * d, move), h_i)

            return term

        models, losses, objectives = _local_sgd_with_terms(
            x, rnd, gradient, lr, weight_decay, term_of
        )
        client_h = dict(client_h)
        for client, final in zip(rnd["clients"], models, strict=True):
            h_i = client_h.get(client, _full_like(x, 0.0))
            client_h[client] = _add_scaled(h_i, -alpha, _sub(final, x))
            h = _add_scaled(h, -alpha / num_clients, _sub(final, x))
        start, mean_y = x, _weighted_sum(_aggregation_weights(rnd), models)
        x = _add_scaled(mean_y, -1.0 / alpha, h)
        history.append(_record(rnd, x, start, models, losses, objectives, h=h, client_h=client_h))
    return history


def adabest(params, rounds, gradient, *, mu, beta, lr, weight_decay=0.0):
    """AdaBest: local loss - <h_i, y>.

    Varno et al., AdaBest: Minimizing Client Drift in Federated Learning via Adaptive Bias
    Estimation, ECCV 2022. With rounds counted from 1 and t_i the round of i's last
    participation, h_i+ = h_i/(t - t_i) + mu (x - y_i). The server has
    xbar = sum_i w_i y_i, h = beta (xbar_prev - xbar) and x+ = xbar - h, and xbar_prev is the
    initial model in the first round. ``params`` is x+, the model sent to the clients.
    Returns ``h``, ``xbar``, ``client_h`` and ``last_round`` (the t_i).
    """
    x, history = params, []
    xbar, client_h, last_round = params, {}, {}
    for t, rnd in enumerate(rounds, start=1):

        def term_of(client, x=x, client_h=client_h):
            h_i = client_h.get(client, _full_like(x, 0.0))
            return lambda y, features: (-_dot(h_i, y), _map(np.negative, h_i))

        models, losses, objectives = _local_sgd_with_terms(
            x, rnd, gradient, lr, weight_decay, term_of
        )
        client_h, last_round = dict(client_h), dict(last_round)
        for client, final in zip(rnd["clients"], models, strict=True):
            elapsed = t - last_round.get(client, 0)
            h_i = client_h.get(client, _full_like(x, 0.0))
            decayed = _map(lambda p, elapsed=elapsed: p / elapsed, h_i)
            client_h[client] = _add_scaled(decayed, mu, _sub(x, final))
            last_round[client] = t
        start, previous = x, xbar
        xbar = _weighted_sum(_aggregation_weights(rnd), models)
        h = _map(lambda old, new: beta * (old - new), previous, xbar)
        x = _sub(xbar, h)
        state = {"h": h, "xbar": xbar, "client_h": client_h, "last_round": last_round}
        history.append(_record(rnd, x, start, models, losses, objectives, **state))
    return history


def feddc(params, rounds, gradient, *, alpha, lr, num_clients, weight_decay=0.0):
    """FedDC: local loss + alpha/2 ||h_i + y - x||^2 + <y, c - c_i>.

    Gao et al., FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and
    Correction, CVPR 2022. h_i+ = h_i + (y_i - x),
    c_i+ = c_i - c + (x - y_i)/(K_i lr), c+ = c + (1/N) sum_{i in S} (c_i+ - c_i),
    h+ = h + (1/N) sum_{i in S} (y_i - x), the mean of all clients' h_i, and
    x+ = sum_i w_i y_i + h+. c_i+ comes from the displacement: the penalty and weight decay are in
    it. Returns ``h``, ``c``, ``client_h`` and ``client_controls``.
    """
    x, history = params, []
    h, c, client_h, controls = _full_like(params, 0.0), _full_like(params, 0.0), {}, {}
    for rnd in rounds:

        def term_of(client, x=x, c=c, client_h=client_h, controls=controls):
            h_i = client_h.get(client, _full_like(x, 0.0))
            slope = _sub(c, controls.get(client, _full_like(x, 0.0)))

            def term(y, features):
                drift = _add_scaled(h_i, 1.0, _sub(y, x))
                value = 0.5 * alpha * _dot(drift, drift) + _dot(slope, y)
                return value, _add_scaled(slope, alpha, drift)

            return term

        models, losses, objectives = _local_sgd_with_terms(
            x, rnd, gradient, lr, weight_decay, term_of
        )
        client_h, controls, c_next = dict(client_h), dict(controls), c
        for client, batches, final in zip(rnd["clients"], rnd["batches"], models, strict=True):
            h_i = client_h.get(client, _full_like(x, 0.0))
            c_i = controls.get(client, _full_like(x, 0.0))
            client_h[client] = _add_scaled(h_i, 1.0, _sub(final, x))
            per_step = 1.0 / (len(batches) * lr)
            controls[client] = _add_scaled(_sub(c_i, c), per_step, _sub(x, final))
            c_next = _add_scaled(c_next, 1.0 / num_clients, _sub(controls[client], c_i))
            h = _add_scaled(h, 1.0 / num_clients, _sub(final, x))
        start, c = x, c_next
        x = _add_scaled(_weighted_sum(_aggregation_weights(rnd), models), 1.0, h)
        state = {"h": h, "c": c, "client_h": client_h, "client_controls": controls}
        history.append(_record(rnd, x, start, models, losses, objectives, **state))
    return history


# Terms in the features of the MLP -----------------------------------------------------------


def _features(params, x):
    """The MLP's features h = tanh(x w1 + b1)."""
    if set(params) != {"w1", "b1", "w2", "b2"}:
        raise ValueError(f"the features are those of the MLP, not of a model of {sorted(params)}")
    return np.tanh(x @ params["w1"] + params["b1"])


def _through_features(params, x, h, d_h):
    """The gradient of a term in h by the MLP's parameters, from its derivative by h."""
    d_hidden = d_h * (1.0 - h**2)
    grads = _full_like(params, 0.0)
    return {**grads, "w1": x.T @ d_hidden, "b1": d_hidden.sum(axis=0)}


def fedmax_term(params, x, beta):
    """beta times the batch mean of KL(uniform || softmax(h)), and its gradient.

    With d features, KL = -log d - (1/d) sum_j log softmax(h)_j, whose derivative by h is
    softmax(h) - 1/d.
    """
    h = _features(params, x)
    n, d = h.shape
    shifted = h - h.max(axis=1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    value = beta * np.mean(-np.log(d) - log_probs.mean(axis=1))
    return value, _through_features(params, x, h, beta * (np.exp(log_probs) - 1.0 / d) / n)


def _cosine(a, b):
    """Row-wise cosine similarity and its derivative by a."""
    norm_a = np.linalg.norm(a, axis=1, keepdims=True)
    norm_b = np.linalg.norm(b, axis=1, keepdims=True)
    cosine = np.sum(a * b, axis=1, keepdims=True) / (norm_a * norm_b)
    return cosine, b / (norm_a * norm_b) - cosine * a / norm_a**2


def moon_term(params, x, positive, negative, mu, temperature):
    """mu times the batch mean of MOON's contrastive loss, and its gradient.

    With p and q the cosines of the features of y with those of the positive and of the negative
    model, the loss of a sample is -log(e^(p/T)/(e^(p/T) + e^(q/T))) = log(1 + e^((q - p)/T)).
    """
    h = _features(params, x)
    p, d_p = _cosine(h, _features(positive, x))
    q, d_q = _cosine(h, _features(negative, x))
    gap = (q - p) / temperature
    value = mu * np.mean(np.logaddexp(0.0, gap))
    sigmoid = 1.0 / (1.0 + np.exp(-gap))
    d_h = mu * sigmoid * (d_q - d_p) / (temperature * len(x))
    return value, _through_features(params, x, h, d_h)


def fedmax(params, rounds, gradient, *, beta, lr, server_lr=1.0, weight_decay=0.0):
    """FedMAX: local loss + beta KL(uniform || softmax(h)), averaged over the minibatch.

    Chen et al., FedMAX: Mitigating Activation Divergence for Accurate and Communication-Efficient
    Federated Learning, ECML PKDD 2020, as in the FedGBO paper. Only for the MLP.
    """
    x, history = params, []
    for rnd in rounds:
        models, losses, objectives = _local_sgd_with_terms(
            x,
            rnd,
            gradient,
            lr,
            weight_decay,
            lambda client: lambda y, features: fedmax_term(y, features, beta),
        )
        start, mean_y = x, _weighted_sum(_aggregation_weights(rnd), models)
        x = _add_scaled(x, server_lr, _sub(mean_y, start))
        history.append(_record(rnd, x, start, models, losses, objectives))
    return history


def moon(params, rounds, gradient, *, mu, temperature, lr, server_lr=1.0, weight_decay=0.0):
    """MOON: local loss + mu contrastive(y; x positive, i's previous local model negative).

    Li et al., Model-Contrastive Federated Learning, CVPR 2021. Only for the MLP. A client's
    previous model is its final local model of its last participation. Before that, in the
    published code and here, the term is zero for the whole cohort of the first round, and a
    client whose first participation is a later round has the initial model as its previous one:
    its term is not zero. To take the initial model in the first round too would change no step:
    positive and negative model are then the same, and the term is mu log 2 at every y. Returns
    ``previous``, by client id.
    """
    x, history = params, []
    previous = {}
    for t, rnd in enumerate(rounds):

        def term_of(client, x=x, t=t, previous=previous):
            if t == 0:
                return lambda y, features: (0.0, _full_like(y, 0.0))
            old = previous.get(client, params)
            return lambda y, features: moon_term(y, features, x, old, mu, temperature)

        models, losses, objectives = _local_sgd_with_terms(
            x, rnd, gradient, lr, weight_decay, term_of
        )
        previous = {**previous, **dict(zip(rnd["clients"], models, strict=True))}
        start, mean_y = x, _weighted_sum(_aggregation_weights(rnd), models)
        x = _add_scaled(x, server_lr, _sub(mean_y, start))
        history.append(_record(rnd, x, start, models, losses, objectives, previous=previous))
    return history
