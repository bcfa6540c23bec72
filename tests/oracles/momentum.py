"""References of algorithms with momentum in the clients' steps or on the server.

NumPy and float64, from the papers' pseudocode. The format of ``rounds`` and of what is returned
is that of ``reference.py``: the server's states are under ``m``, ``d`` and ``c``, those of the
clients are dicts by client id of the clients that have taken part so far.

Weight decay is added to the local step after the momentum and the corrections. It enters the
states that are made of displacements (FedCM's and SCAFFOLD-M's d, GHBM's m), and not those
that are made of gradients (Mime's c, SCAFFOLD-M's controls).
"""

from .reference import (
    HYPER,
    _add_scaled,
    _aggregation_weights,
    _entry,
    _full_like,
    _init_statistics,
    _local_sgd,
    _map,
    _sub,
    _track,
    _update,
    _weighted_sum,
)
from .regularised import _dot, _local_sgd_with_terms, _record


def _local_steps(x, rnd, gradient, lr, weight_decay, correct_for):
    """Local SGD of the cohort from x, with ``correct_for(client, K_i)(g, y)`` in place of g.

    Return the displacements y_i - x in the cohort's order, the raw gradients and the losses.
    """
    deltas, raw, losses = [], [], []
    for client, batches in zip(rnd["clients"], rnd["batches"], strict=True):
        y, client_raw, client_losses = _local_sgd(
            x, batches, gradient, lr, weight_decay, correct_for(client, len(batches))
        )
        deltas.append(_sub(y, x))
        raw.append(client_raw)
        losses += client_losses
    return deltas, raw, losses


def _mean_delta(rnd, deltas):
    """sum_i w_i (y_i - x)."""
    return _weighted_sum(_aggregation_weights(rnd), deltas)


def _mean_direction(rnd, deltas, lr):
    """sum_i w_i (x - y_i)/(lr K_i): each displacement is divided by its own K_i."""
    weights = _aggregation_weights(rnd)
    scales = [-w / (lr * len(b)) for w, b in zip(weights, rnd["batches"], strict=True)]
    return _weighted_sum(scales, deltas)


# Mime ---------------------------------------------------------------------------------------


def _mime_rounds(params, rounds, gradient, stats, step, track, server_lr, weight_decay):
    """Mime with step(g, s), subtracted from y, and s+ = track(c, s).

    Local steps take g(y) - g(x) + c, both gradients on the same minibatch; c is the weighted mean
    of the cohort's gradients at x, each on all of the client's data, without weight decay.
    """
    x, history = params, []
    for rnd in rounds:
        full = [gradient(x, *data)[1] for data in rnd["full"]]
        c = _weighted_sum(_aggregation_weights(rnd), full)
        deltas, losses = [], []
        for batches in rnd["batches"]:
            y = x
            for features, labels in batches:
                loss, g = gradient(y, features, labels)
                _, g_x = gradient(x, features, labels)
                losses.append(loss)
                corrected = _add_scaled(_sub(g, g_x), 1.0, c)
                y = _sub(y, step(_add_scaled(corrected, weight_decay, y), stats))
            deltas.append(_sub(y, x))
        x = _add_scaled(x, server_lr, _mean_delta(rnd, deltas))
        stats = track(c, stats)
        history.append(_entry(rnd, x, deltas, losses, c=c, **stats))
    return history


def mime(params, rounds, gradient, *, optimizer, server_lr=1.0, weight_decay=0.0, **hyper):
    """Mime: y - U(g(y) - g(x) + c, s), and s+ = T(c, s).

    Karimireddy et al., Breaking the Centralized Barrier for Cross-Device Federated Learning,
    NeurIPS 2021, Algorithm 1 (Mime), with U and T of the FedGBO paper's Table 2. The statistics
    are fixed during the round; 'sgd' has none. Returns ``c`` and the statistics ``m``, ``v``.
    """
    hyper = HYPER | hyper

    def step(g, stats):
        return _update(optimizer, g, stats, hyper)

    def track(c, stats):
        return _track(optimizer, c, stats, hyper)

    stats = {} if optimizer == "sgd" else _init_statistics(optimizer, params, hyper["v0"])
    return _mime_rounds(params, rounds, gradient, stats, step, track, server_lr, weight_decay)


def mimemom(params, rounds, gradient, *, momentum, lr, server_lr=1.0, weight_decay=0.0):
    """MimeMom, un-normalised: y - lr (momentum m + g(y) - g(x) + c), and m+ = momentum m + c.

    Mime with torch's SGD as the base optimiser, its buffer m zero at first. Returns ``c`` and
    ``m``.
    """

    def step(g, stats):
        return _map(lambda g, m: lr * (momentum * m + g), g, stats["m"])

    def track(c, stats):
        return {"m": _add_scaled(c, momentum, stats["m"])}

    stats = {"m": _full_like(params, 0.0)}
    return _mime_rounds(params, rounds, gradient, stats, step, track, server_lr, weight_decay)


# FedACG, FedCM ------------------------------------------------------------------------------


def fedacg(params, rounds, gradient, *, lam, beta, lr, server_lr=1.0, weight_decay=0.0):
    """FedACG: clients start at z = x + lam m, with local loss + beta/2 ||y - z||^2.

    Kim et al., Communication-Efficient Federated Learning with Accelerated Client Gradient,
    Algorithm 1 and equations 2 and 3. m+ = lam m + server_lr sum_i w_i (y_i - z) and x+ = x + m+.
    Paper and published code have no server step size here (server_lr = 1). ``deltas`` are
    y_i - z. Returns ``m``, and ``objective``, the mean loss with the penalty.
    """
    x, history = params, []
    m = _full_like(params, 0.0)
    for rnd in rounds:
        z = _add_scaled(x, lam, m)

        def term(y, features, z=z):
            move = _sub(y, z)
            return 0.5 * beta * _dot(move, move), _map(lambda d: beta * d, move)

        models, losses, objectives = _local_sgd_with_terms(
            z, rnd, gradient, lr, weight_decay, lambda client, term=term: term
        )
        mean_delta = _mean_delta(rnd, [_sub(y, z) for y in models])
        m = _map(lambda m, d: lam * m + server_lr * d, m, mean_delta)
        x = _add_scaled(x, 1.0, m)
        history.append(_record(rnd, x, z, models, losses, objectives, m=m, mean_delta=mean_delta))
    return history


def fedcm(params, rounds, gradient, *, alpha, lr, server_lr=1.0, weight_decay=0.0):
    """FedCM: local direction alpha g + (1 - alpha) d.

    Xu et al., FedCM: Federated Learning with Client-level Momentum, 2021.
    d+ = sum_i w_i (x - y_i)/(lr K_i), without server_lr. Returns ``d``.
    """
    x, history = params, []
    d = _full_like(params, 0.0)
    for rnd in rounds:

        def correct(g, y, d=d):
            return _map(lambda g, d: alpha * g + (1.0 - alpha) * d, g, d)

        deltas, _, losses = _local_steps(
            x, rnd, gradient, lr, weight_decay, lambda client, k, correct=correct: correct
        )
        x = _add_scaled(x, server_lr, _mean_delta(rnd, deltas))
        d = _mean_direction(rnd, deltas, lr)
        history.append(_entry(rnd, x, deltas, losses, d=d))
    return history


# GHBM and its kin ---------------------------------------------------------------------------
#
# Zaccone et al., Communication-Efficient Heterogeneous Federated Learning with Generalized
# Heavy-Ball Momentum, TMLR 2025.


def _local_nesterov(x, batches, gradient, lr, weight_decay, shift):
    """Local SGD with y + shift before each gradient."""
    y, losses = x, []
    for features, labels in batches:
        y = _add_scaled(y, 1.0, shift)
        loss, g = gradient(y, features, labels)
        losses.append(loss)
        y = _add_scaled(y, -lr, _add_scaled(g, weight_decay, y))
    return y, losses


def _heavy_ball(x, models, tau):
    """(x_t - x_{t-tau})/tau, or zero while fewer than tau earlier models exist."""
    if len(models) < tau:
        return _full_like(x, 0.0)
    return _map(lambda new, old: (new - old) / tau, x, models[-tau])


def ghbm(
    params,
    rounds,
    gradient,
    *,
    beta,
    tau,
    lr,
    nesterov=False,
    in_step=False,
    server_lr=1.0,
    weight_decay=0.0,
):
    """GHBM: y - lr g + (beta/K_i) m, m = (x_t - x_{t-tau})/tau.

    Algorithm 1 and equation 7. There is no momentum while fewer than tau earlier models exist.
    With ``nesterov``, y + (beta/K_i) m comes before each gradient. With ``in_step``, Algorithm 2:
    u = g - (beta/K_i) m and y - lr u. Returns ``m``, for the next round, and ``models``, the last tau
    models before ``params``, oldest first.
    """
    x, history = params, []
    models = []
    for rnd in rounds:
        m = _heavy_ball(x, models, tau)
        deltas, losses = [], []
        for batches in rnd["batches"]:
            shift = _weighted_sum([(lr if in_step else 1.0) * beta / len(batches)], [m])
            if nesterov:
                y, client_losses = _local_nesterov(x, batches, gradient, lr, weight_decay, shift)
            else:

                def correct(g, y, shift=shift):
                    return _add_scaled(g, -1.0 / lr, shift)

                y, _, client_losses = _local_sgd(x, batches, gradient, lr, weight_decay, correct)
            deltas.append(_sub(y, x))
            losses += client_losses
        models = [*models, x][-tau:]
        x = _add_scaled(x, server_lr, _mean_delta(rnd, deltas))
        m = _heavy_ball(x, models, tau)
        history.append(_entry(rnd, x, deltas, losses, m=m, models=models))
    return history


def fedadc(params, rounds, gradient, *, beta, lr, server_lr=1.0, weight_decay=0.0):
    """FedADC: GHBM's Nesterov form with tau = 1.

    Ozfatura et al., FedADC: Accelerated Federated Learning with Drift Control, ISIT 2021.
    """
    hyper = {"lr": lr, "server_lr": server_lr, "weight_decay": weight_decay}
    return ghbm(params, rounds, gradient, beta=beta, tau=1, nesterov=True, **hyper)


def ghbm_theory(
    params, rounds, gradient, *, beta, tau, lr, server_lr=1.0, eta=None, weight_decay=0.0
):
    """GHBM as analysed: the momentum of the last tau pseudo-gradients; beta weighs the gradient.

    The paper's Algorithm 3, as its proofs use it:

        y_i - lr (beta g + (1 - beta) m_t)                   local step (proof of lemma B.7)
        G_t = sum_i w_i (1/K_i) sum_k g_{i,k}                round t's pseudo-gradient (lemma 4.6)
        m_{t+1} = (1 - beta) m_t + (beta/tau) sum_{s=t-tau+1..t} G_s            (equation 64)
        x_{t+1} = x_t - eta m_{t+1}                                            (lemma B.8)

    with m_0 = 0 (theorem 4.7). Equation 4 of the main text has the same sum with beta on m and
    1 on the sum. G_t has the gradients and not the momentum of the local steps, so it is got
    from the displacements D_t = sum_i w_i (x_t - y_i)/(lr K_i) as G_t = (D_t - (1 - beta) m_t)/beta.
    The proofs do not say what the sum is while fewer than tau rounds are over: the missing G_s
    count as zero here, and the sum is still divided by tau.

    ``eta`` is the paper's server step size; by default server_lr lr sum_i w_i K_i, with which
    tau = 1 is FedCM (alpha = beta) for equal K. Returns ``m`` and ``pseudo_gradient``, G_t. With
    weight decay G_t has (weight_decay/beta) times the mean y too, as FedCM's d has.
    """
    if not 0.0 < beta <= 1.0:
        raise ValueError(f"beta must be in (0, 1], not {beta}")
    x, history = params, []
    m, recent = _full_like(params, 0.0), []
    for rnd in rounds:

        def correct(g, y, m=m):
            return _map(lambda g, m: beta * g + (1.0 - beta) * m, g, m)

        deltas, _, losses = _local_steps(
            x, rnd, gradient, lr, weight_decay, lambda client, k, correct=correct: correct
        )
        direction = _mean_direction(rnd, deltas, lr)
        g_t = _map(lambda d, m: (d - (1.0 - beta) * m) / beta, direction, m)
        recent = [*recent, g_t][-tau:]
        m = _map(lambda m: (1.0 - beta) * m, m)
        for g_s in recent:
            m = _add_scaled(m, beta / tau, g_s)
        step = eta
        if step is None:
            weights = _aggregation_weights(rnd)
            mean_k = sum(w * len(b) for w, b in zip(weights, rnd["batches"], strict=True))
            step = server_lr * lr * mean_k
        x = _add_scaled(x, -step, m)
        history.append(_entry(rnd, x, deltas, losses, m=m, pseudo_gradient=g_t))
    return history


def ghbm_server(params, rounds, gradient, *, beta, tau, lr, server_lr=1.0, weight_decay=0.0):
    """GHBM on the server: x + server_lr sum_i w_i (y_i - x) + beta m, FedAvg's clients.

    Equation 6: m = (x_t - x_{t-tau})/tau, none while x_{t-tau} does not exist. Returns ``m`` for
    the next round and ``models``, as ghbm does.
    """
    x, history = params, []
    models = []
    for rnd in rounds:
        deltas, _, losses = _local_steps(
            x, rnd, gradient, lr, weight_decay, lambda client, k: lambda g, y: g
        )
        m = _heavy_ball(x, models, tau)
        models = [*models, x][-tau:]
        x = _add_scaled(_add_scaled(x, server_lr, _mean_delta(rnd, deltas)), beta, m)
        m = _heavy_ball(x, models, tau)
        history.append(_entry(rnd, x, deltas, losses, m=m, models=models))
    return history


def _share(rnd, num_clients, last, t, by_absence):
    """client -> C, or 1/tau_i; what it is for a client without an anchor does not matter."""
    if by_absence:
        return lambda client: 1 / (t - last.get(client, t - 1))
    return lambda client: len(rnd["clients"]) / num_clients


def localghbm(
    params,
    rounds,
    gradient,
    *,
    beta,
    lr,
    num_clients,
    by_absence=False,
    server_lr=1.0,
    weight_decay=0.0,
):
    """LocalGHBM: y - lr g + (beta C/K_i) (x - a_i), a_i the model i received last time.

    Algorithm 1, with C = |S|/N for 1/tau_i as in the published code; ``by_absence`` is 1/tau_i, tau_i
    the rounds since i took part. No momentum in a client's first participation. Returns ``anchors``,
    the a_i.
    """
    x, history = params, []
    anchors, last = {}, {}
    for t, rnd in enumerate(rounds):
        share_of = _share(rnd, num_clients, last, t, by_absence)

        def correct_for(client, k, x=x, anchors=anchors, share_of=share_of):
            share = share_of(client)
            move = _sub(x, anchors.get(client, x))
            return lambda g, y: _add_scaled(g, -beta * share / (k * lr), move)

        deltas, _, losses = _local_steps(x, rnd, gradient, lr, weight_decay, correct_for)
        anchors = {**anchors, **dict.fromkeys(rnd["clients"], x)}
        last = {**last, **dict.fromkeys(rnd["clients"], t)}
        x = _add_scaled(x, server_lr, _mean_delta(rnd, deltas))
        history.append(_entry(rnd, x, deltas, losses, anchors=anchors))
    return history


def fedhbm(
    params,
    rounds,
    gradient,
    *,
    beta,
    lr,
    num_clients,
    by_absence=False,
    server_lr=1.0,
    weight_decay=0.0,
):
    """FedHBM: y - lr g + (beta C/K_i) (y - a_i), a_i i's final local model of last time.

    The momentum is taken anew in every local step; none in a client's first participation. With
    ``by_absence``, 1/tau_i for C as in ``localghbm``. Returns ``anchors``, the a_i.
    """
    x, history = params, []
    anchors, last = {}, {}
    for t, rnd in enumerate(rounds):
        share_of = _share(rnd, num_clients, last, t, by_absence)

        def correct_for(client, k, anchors=anchors, share_of=share_of):
            if client not in anchors:
                return lambda g, y: g
            a_i, share = anchors[client], share_of(client)
            return lambda g, y: _add_scaled(g, -beta * share / (k * lr), _sub(y, a_i))

        deltas, _, losses = _local_steps(x, rnd, gradient, lr, weight_decay, correct_for)
        finals = [_add_scaled(x, 1.0, delta) for delta in deltas]
        anchors = {**anchors, **dict(zip(rnd["clients"], finals, strict=True))}
        last = {**last, **dict.fromkeys(rnd["clients"], t)}
        x = _add_scaled(x, server_lr, _mean_delta(rnd, deltas))
        history.append(_entry(rnd, x, deltas, losses, anchors=anchors))
    return history


# SCAFFOLD-M ---------------------------------------------------------------------------------


def scaffold_m(params, rounds, gradient, *, beta, lr, num_clients, server_lr=1.0, weight_decay=0.0):
    """SCAFFOLD-M: local direction beta (g - c_i + c) + (1 - beta) d.

    Cheng et al., Momentum Benefits Non-IID Federated Learning Simply and Provably, ICLR 2024.
    c_i+ is the mean raw gradient of the K_i local steps, c+ = c + (1/N) sum_i (c_i+ - c_i) without
    the aggregation weights, d+ = sum_i w_i (x - y_i)/(lr K_i). Returns ``c``, ``d`` and
    ``client_controls``.
    """
    x, history = params, []
    c, d, controls = _full_like(params, 0.0), _full_like(params, 0.0), {}
    for rnd in rounds:

        def correct_for(client, k, c=c, d=d, controls=controls):
            offset = _sub(c, controls.get(client, _full_like(c, 0.0)))
            return lambda g, y: _map(
                lambda g, o, d: beta * (g + o) + (1.0 - beta) * d, g, offset, d
            )

        deltas, raw, losses = _local_steps(x, rnd, gradient, lr, weight_decay, correct_for)
        controls = dict(controls)
        for client, grads in zip(rnd["clients"], raw, strict=True):
            old = controls.get(client, _full_like(c, 0.0))
            controls[client] = _weighted_sum([1.0 / len(grads)] * len(grads), grads)
            c = _add_scaled(c, 1.0 / num_clients, _sub(controls[client], old))
        x = _add_scaled(x, server_lr, _mean_delta(rnd, deltas))
        d = _mean_direction(rnd, deltas, lr)
        history.append(_entry(rnd, x, deltas, losses, c=c, d=d, client_controls=controls))
    return history
