"""Reference implementations of federated algorithms, in NumPy and float64.

Written from the papers' pseudocode to be read next to it, and to check a library from outside:
nothing here imports one. All loops over rounds, clients and local steps are explicit.

A model is a dict of float64 arrays, and ``gradient(params, x, y)`` returns ``(loss, grads)``.
``rounds`` is a list of dicts, one per round:

``clients``  ids of the cohort;
``batches``  ``batches[i][k] = (x, y)``, the k-th minibatch of the i-th member of the cohort (the
             position in ``clients``, not the id); the lists may differ in length, and each has
             at least one minibatch;
``weights``  aggregation weights in the cohort's order, normalised here, or None for uniform;
``full``     ``full[i] = (x, y)``, all data of the i-th member (MimeLite, SCAFFOLD option 1);
``probe``    optional: where MimeLite takes its gradient instead of ``full`` (MimeXlite).

Every algorithm returns a list with one dict per round, the state after it: ``params``, the
statistics by name (``m``, ``v``, ``c``, ``client_controls``), the quantity the server fed to
them where there is one (``pseudo_gradient``, ``biased_gradient``, ``probe_gradient``), the
``deltas`` y_i - x by client id, and ``loss``, the plain mean over the round's minibatches.

Notation: x global model, y local model, g minibatch gradient at y, K local steps. Weight decay
is coupled (g + weight_decay * y), added after an algorithm's corrections as torch's optimisers
do. ``server_lr`` scales the model's mean displacement and nothing else.
"""

import json
from pathlib import Path

import numpy as np

TRAJECTORIES = Path(__file__).parent / "trajectories"


# Loading ------------------------------------------------------------------------------------


def _arrays(node):
    """Turn the lists of a parsed trajectory into float64 arrays and client ids into ints."""
    if isinstance(node, dict):
        return {int(k) if k.isdigit() else k: _arrays(v) for k, v in node.items()}
    if isinstance(node, list) and node and isinstance(node[0], dict):
        return [_arrays(v) for v in node]
    return None if node is None else np.asarray(node, dtype=np.float64)


def load_problem():
    """Return problem.json, with X, y and the initial models as arrays."""
    problem = json.loads((TRAJECTORIES / "problem.json").read_text(encoding="utf-8"))
    problem["X"] = np.asarray(problem["X"], dtype=np.float64)
    problem["y"] = np.asarray(problem["y"], dtype=np.int64)
    problem["init"] = {name: _arrays(params) for name, params in problem["init"].items()}
    return problem


def load_trajectory(name):
    """Return a trajectory, with parameters and states as arrays and client ids as ints."""
    trajectory = json.loads((TRAJECTORIES / f"{name}.json").read_text(encoding="utf-8"))
    trajectory["init_state"] = _arrays(trajectory["init_state"])
    for entry in trajectory["rounds"]:
        entry.update({k: _arrays(v) for k, v in entry.items() if isinstance(v, dict)})
    return trajectory


def trajectory_rounds(name):
    """Build the ``rounds`` list of a trajectory from its schedule in problem.json."""
    problem, trajectory = load_problem(), load_trajectory(name)
    features, labels = problem["X"], problem["y"]
    rounds = []
    for t, clients in enumerate(problem["schedules"][trajectory["schedule"]]):
        rnd = {"clients": list(clients), "weights": None, "batches": [], "full": []}
        for i in clients:
            rows = problem["batches"][t][i]
            rnd["batches"].append([(features[i][r], labels[i][r]) for r in rows])
            rnd["full"].append((features[i], labels[i]))
        if trajectory["algorithm"] == "MimeXlite":
            extra = [problem["extra_batches"][t][i] for i in clients]
            rnd["probe"] = [
                (features[i][r], labels[i][r]) for i, r in zip(clients, extra, strict=True)
            ]
        rounds.append(rnd)
    return rounds


# Models -------------------------------------------------------------------------------------


def _softmax_cross_entropy(logits, y):
    """Return the mean cross-entropy and its derivative with respect to the logits."""
    n = len(y)
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    d_logits = np.exp(log_probs)
    d_logits[np.arange(n), y] -= 1.0
    return -log_probs[np.arange(n), y].mean(), d_logits / n


def logreg(params, x, y):
    """Loss and gradients of softmax regression, logits = x w + b."""
    loss, d_logits = _softmax_cross_entropy(x @ params["w"] + params["b"], y)
    return loss, {"w": x.T @ d_logits, "b": d_logits.sum(axis=0)}


def mlp(params, x, y):
    """Loss and gradients of one hidden layer, logits = tanh(x w1 + b1) w2 + b2."""
    h = np.tanh(x @ params["w1"] + params["b1"])
    loss, d_logits = _softmax_cross_entropy(h @ params["w2"] + params["b2"], y)
    d_hidden = (d_logits @ params["w2"].T) * (1.0 - h**2)
    return loss, {
        "w1": x.T @ d_hidden,
        "b1": d_hidden.sum(axis=0),
        "w2": h.T @ d_logits,
        "b2": d_logits.sum(axis=0),
    }


# Arithmetic on dicts of arrays --------------------------------------------------------------


def _map(function, *trees):
    """Apply a function leaf by leaf."""
    return {k: function(*(tree[k] for tree in trees)) for k in trees[0]}


def _full_like(params, value):
    """A dict of the same shapes, filled with one value."""
    return _map(lambda p: np.full_like(p, value, dtype=np.float64), params)


def _sub(a, b):
    """a - b."""
    return _map(lambda p, q: p - q, a, b)


def _add_scaled(a, scale, b):
    """a + scale * b."""
    return _map(lambda p, q: p + scale * q, a, b)


def _weighted_sum(weights, trees):
    """sum_i weights[i] * trees[i]."""
    total = _full_like(trees[0], 0.0)
    for weight, tree in zip(weights, trees, strict=True):
        total = _add_scaled(total, weight, tree)
    return total


def _aggregation_weights(rnd):
    """The cohort's weights w_i, summing to one."""
    count = len(rnd["clients"])
    if rnd.get("weights") is None:
        return [1.0 / count] * count
    weights = np.asarray(rnd["weights"], dtype=np.float64)
    if len(weights) != count:
        raise ValueError(f"{len(weights)} weights for {count} clients")
    return list(weights / weights.sum())


def _entry(rnd, params, deltas, losses, **state):
    """One round's record."""
    by_client = dict(zip(rnd["clients"], deltas, strict=True))
    return {"params": params, "loss": float(np.mean(losses)), "deltas": by_client, **state}


# SGD on the clients: FedAvg, FedProx, AdaptiveFedOpt, SCAFFOLD ------------------------------


def _local_sgd(x, batches, gradient, lr, weight_decay, correct):
    """Run local SGD with ``correct(g, y)`` for g; return y, the raw gradients and the losses."""
    y, raw, losses = x, [], []
    for features, labels in batches:
        loss, g = gradient(y, features, labels)
        raw.append(g)
        losses.append(loss)
        step = _add_scaled(correct(g, y), weight_decay, y)
        y = _add_scaled(y, -lr, step)
    return y, raw, losses


def fedprox(params, rounds, gradient, *, mu, lr, server_lr=1.0, weight_decay=0.0):
    """FedProx: local gradients g + mu (y - x).

    Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, Algorithm 2, with
    the local subproblem solved approximately by the given minibatch steps.
    """
    x, history = params, []
    for rnd in rounds:

        def proximal(g, y, x=x):
            return _add_scaled(g, mu, _sub(y, x))

        deltas, losses = [], []
        for batches in rnd["batches"]:
            y, _, client_losses = _local_sgd(x, batches, gradient, lr, weight_decay, proximal)
            deltas.append(_sub(y, x))
            losses += client_losses
        x = _add_scaled(x, server_lr, _weighted_sum(_aggregation_weights(rnd), deltas))
        history.append(_entry(rnd, x, deltas, losses))
    return history


def fedavg(params, rounds, gradient, *, lr, server_lr=1.0, weight_decay=0.0):
    """FedAvg: x + server_lr * sum_i w_i (y_i - x).

    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
    AISTATS 2017, Algorithm 1 (server_lr = 1).
    """
    x, history = params, []
    for rnd in rounds:
        deltas, losses = [], []
        for batches in rnd["batches"]:
            y, _, client_losses = _local_sgd(x, batches, gradient, lr, weight_decay, lambda g, y: g)
            deltas.append(_sub(y, x))
            losses += client_losses
        mean_delta = _weighted_sum(_aggregation_weights(rnd), deltas)
        pseudo_gradient = _map(np.negative, mean_delta)
        x = _add_scaled(x, -server_lr, pseudo_gradient)
        history.append(_entry(rnd, x, deltas, losses, pseudo_gradient=pseudo_gradient))
    return history


def fednova(params, rounds, gradient, *, lr, beta, server_lr=1.0, weight_decay=0.0):
    """FedNova with momentum (1 - beta) g + beta m on the clients, fresh in every round.

    Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization,
    NeurIPS 2020, equation 9; ||a||_1 in closed form, as in its Section 4 for momentum.
    """
    x, history = params, []
    for rnd in rounds:
        deltas, losses, lengths = [], [], []
        for batches in rnd["batches"]:
            y, m = x, _full_like(x, 0.0)
            for batch in batches:
                loss, g = gradient(y, *batch)
                g = _add_scaled(g, weight_decay, y)
                m = _map(lambda g, m: (1 - beta) * g + beta * m, g, m)
                y = _add_scaled(y, -lr, m)
                losses.append(loss)
            deltas.append(_sub(y, x))
            steps = len(batches)
            lengths.append(steps - beta * (1 - beta**steps) / (1 - beta))
        weights = _aggregation_weights(rnd)
        mean_length = sum(w * a for w, a in zip(weights, lengths, strict=True))
        directions = [_map(lambda d: d / a, d) for d, a in zip(deltas, lengths, strict=True)]  # noqa: B023
        step = _weighted_sum(weights, directions)
        x = _add_scaled(x, server_lr * mean_length, step)
        history.append(_entry(rnd, x, deltas, losses))
    return history


def _init_server(server, params, v0):
    """Initial server statistics: m = 0, v = v0."""
    names = dict(sgd="", sgdm="m", momentum="m", adam="mv", yogi="mv", adagrad="v", rmsprop="v")
    return {name: _full_like(params, 0.0 if name == "m" else v0) for name in names[server]}


def _server_momentum(server, g, m, beta, beta1):
    """First moment: normalised (FedGBO paper's SGDm, Adam, Yogi) or not (FedAvgM)."""
    if server == "momentum":
        return _map(lambda g, m: beta * m + g, g, m)
    decay = beta if server == "sgdm" else beta1
    return _map(lambda g, m: decay * m + (1.0 - decay) * g, g, m)


def _server_second_moment(server, g, v, beta, beta2):
    """Second moment of the server's adaptive methods, without bias correction."""
    if server == "adagrad":
        return _map(lambda g, v: v + g**2, g, v)
    if server == "yogi":
        return _map(lambda g, v: v - (1.0 - beta2) * g**2 * np.sign(v - g**2), g, v)
    decay = beta if server == "rmsprop" else beta2
    return _map(lambda g, v: decay * v + (1.0 - decay) * g**2, g, v)


def adaptive_fedopt(
    params, rounds, gradient, *, server, lr, server_lr=1.0, weight_decay=0.0,
    beta=0.9, beta1=0.9, beta2=0.99, eps=1e-3, v0=1.0,
):  # fmt: skip
    """AdaptiveFedOpt: a server optimiser on the pseudo-gradient -sum_i w_i (y_i - x).

    Reddi et al., Adaptive Federated Optimization, ICLR 2021, Algorithm 2: statistics first, then
    x - server_lr m/(sqrt(v) + eps), no bias correction. ``v0`` is tau^2 there, 1 in the FedGBO
    paper. 'sgdm' is m+ = beta m + (1 - beta) g; 'momentum' is FedAvgM's m+ = beta m + g (Hsu et
    al., 2019). 'adam' and 'yogi' use beta1 and beta2; 'rmsprop' uses beta; 'adagrad' and
    'rmsprop' keep no first moment (Reddi et al. set beta1 = 0 for FedAdagrad).
    """
    x, history = params, []
    state = _init_server(server, params, v0)
    for rnd in rounds:
        # The clients' part of the round is FedAvg's.
        (local,) = fedavg(x, [rnd], gradient, lr=lr, weight_decay=weight_decay)
        g = local["pseudo_gradient"]
        new_state, direction = {}, g
        if "m" in state:
            new_state["m"] = _server_momentum(server, g, state["m"], beta, beta1)
            direction = new_state["m"]
        if "v" in state:
            new_state["v"] = _server_second_moment(server, g, state["v"], beta, beta2)
            direction = _map(lambda d, v: d / (np.sqrt(v) + eps), direction, new_state["v"])
        state = new_state
        x = _add_scaled(x, -server_lr, direction)
        history.append({**local, "params": x, **state})
    return history


def scaffold(
    params, rounds, gradient, *, lr, num_clients, option=2, server_lr=1.0, weight_decay=0.0
):
    """SCAFFOLD: local gradients g - c_i + c, controls kept by the clients.

    Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML
    2020, Algorithm 1. c_i+ is the full gradient at x (option 1) or the mean raw minibatch gradient
    of the local steps (option 2, equal to c_i - c + (x - y)/(K lr) without weight decay).
    c+ = c + (1/num_clients) sum_i (c_i+ - c_i): the aggregation weights do not enter it.
    """
    if option not in (1, 2):
        raise ValueError(f"option must be 1 or 2, not {option}")
    x, history = params, []
    c, controls = _full_like(params, 0.0), {}
    for rnd in rounds:
        deltas, losses, control_change = [], [], _full_like(params, 0.0)
        controls = dict(controls)
        for i, client in enumerate(rnd["clients"]):
            c_i = controls.get(client, _full_like(params, 0.0))
            offset = _sub(c, c_i)

            def corrected(g, y, offset=offset):
                return _add_scaled(g, 1.0, offset)

            y, raw, client_losses = _local_sgd(
                x, rnd["batches"][i], gradient, lr, weight_decay, corrected
            )
            if option == 1:
                _, controls[client] = gradient(x, *rnd["full"][i])
            else:
                controls[client] = _weighted_sum([1.0 / len(raw)] * len(raw), raw)
            control_change = _add_scaled(control_change, 1.0, _sub(controls[client], c_i))
            deltas.append(_sub(y, x))
            losses += client_losses
        x = _add_scaled(x, server_lr, _weighted_sum(_aggregation_weights(rnd), deltas))
        c = _add_scaled(c, 1.0 / num_clients, control_change)
        history.append(_entry(rnd, x, deltas, losses, c=c, client_controls=controls))
    return history


# Adaptive clients: FedGBO, MimeLite, MFL ----------------------------------------------------
#
# Table 2 of the FedGBO paper (Mills et al., Accelerating Federated Learning with a Global Biased
# Optimiser, IEEE ToC), with g^2 in T and sqrt(v) + eps in both U and I: the table prints
# neither consistently, and only with these is I the inverse of U.


HYPER = {"beta": 0.9, "beta1": 0.9, "beta2": 0.99, "eps": 1e-3, "v0": 1.0}  # and lr


def _init_statistics(optimizer, params, v0):
    """Initial statistics of an optimiser: m = 0, v = v0."""
    names = {"sgdm": "m", "rmsprop": "v", "adam": "mv"}
    return {name: _full_like(params, 0.0 if name == "m" else v0) for name in names[optimizer]}


def _first_moment_decay(optimizer, hyper):
    """SGDm calls it beta, Adam beta1."""
    return hyper["beta"] if optimizer == "sgdm" else hyper["beta1"]


def _second_moment_decay(optimizer, hyper):
    """RMSProp calls it beta, Adam beta2."""
    return hyper["beta"] if optimizer == "rmsprop" else hyper["beta2"]


def _update(optimizer, g, stats, hyper):
    """U(g, s): what a step with fixed statistics subtracts from y."""
    direction = g
    if "m" in stats:
        b = _first_moment_decay(optimizer, hyper)
        direction = _map(lambda g, m: b * m + (1.0 - b) * g, g, stats["m"])
    if "v" in stats:
        direction = _map(lambda d, v: d / (np.sqrt(v) + hyper["eps"]), direction, stats["v"])
    return _map(lambda d: hyper["lr"] * d, direction)


def _track(optimizer, g, stats, hyper):
    """T(g, s): the statistics after seeing g."""
    new = {}
    if "m" in stats:
        b1 = _first_moment_decay(optimizer, hyper)
        new["m"] = _map(lambda g, m: b1 * m + (1.0 - b1) * g, g, stats["m"])
    if "v" in stats:
        b2 = _second_moment_decay(optimizer, hyper)
        new["v"] = _map(lambda g, v: b2 * v + (1.0 - b2) * g**2, g, stats["v"])
    return new


def _invert(optimizer, x, x_next, stats, hyper, k):
    """I(x, x+, s, K): the mean gradient of K steps with fixed statistics."""
    g = _map(lambda d: d / (hyper["lr"] * k), _sub(x, x_next))
    if "v" in stats:
        g = _map(lambda d, v: d * (np.sqrt(v) + hyper["eps"]), g, stats["v"])
    if "m" in stats:
        b = _first_moment_decay(optimizer, hyper)
        g = _map(lambda d, m: (d - b * m) / (1.0 - b), g, stats["m"])
    return g


def _fixed_statistics_steps(optimizer, x, stats, batches, gradient, hyper, weight_decay):
    """Local steps of FedGBO and MimeLite: every step uses the round's statistics."""
    y, losses = x, []
    for features, labels in batches:
        loss, g = gradient(y, features, labels)
        losses.append(loss)
        g = _add_scaled(g, weight_decay, y)
        y = _sub(y, _update(optimizer, g, stats, hyper))
    return y, losses


def fedgbo(params, rounds, gradient, *, optimizer, server_lr=1.0, weight_decay=0.0, **hyper):
    """FedGBO: s+ = T(I(x, x+, s, K), s), nothing uploaded but y.

    Mills et al., Accelerating Federated Learning with a Global Biased Optimiser, IEEE ToC,
    Algorithm 1. With unequal K_i, I sees x and x + sum_i w_i (y_i - x)/K_i, with K = 1; for equal
    K that is the paper's. It never sees server_lr, which is no part of the clients' steps.
    """
    hyper = HYPER | hyper
    x, history = params, []
    stats = _init_statistics(optimizer, params, hyper["v0"])
    for rnd in rounds:
        deltas, per_step, losses = [], [], []
        for batches in rnd["batches"]:
            y, client_losses = _fixed_statistics_steps(
                optimizer, x, stats, batches, gradient, hyper, weight_decay
            )
            deltas.append(_sub(y, x))
            per_step.append(_weighted_sum([1.0 / len(batches)], deltas[-1:]))
            losses += client_losses
        weights = _aggregation_weights(rnd)
        one_step = _add_scaled(x, 1.0, _weighted_sum(weights, per_step))
        g = _invert(optimizer, x, one_step, stats, hyper, 1)
        x = _add_scaled(x, server_lr, _weighted_sum(weights, deltas))
        stats = _track(optimizer, g, stats, hyper)
        history.append(_entry(rnd, x, deltas, losses, biased_gradient=g, **stats))
    return history


def mimelite(params, rounds, gradient, *, optimizer, server_lr=1.0, weight_decay=0.0, **hyper):
    """MimeLite: s+ = T(mean of the clients' gradients at x, s).

    Karimireddy et al., Breaking the Centralized Barrier for Cross-Device Federated Learning,
    NeurIPS 2021, Algorithm 1 (MimeLite). MimeXlite (FedGBO paper, section 5.2) takes one minibatch
    for the full data: the round's ``probe``. The probes carry no weight decay.
    """
    hyper = HYPER | hyper
    x, history = params, []
    stats = _init_statistics(optimizer, params, hyper["v0"])
    for rnd in rounds:
        probe_data = rnd["probe"] if "probe" in rnd else rnd["full"]
        deltas, probes, losses = [], [], []
        for i, batches in enumerate(rnd["batches"]):
            _, probe = gradient(x, *probe_data[i])
            probes.append(probe)
            y, client_losses = _fixed_statistics_steps(
                optimizer, x, stats, batches, gradient, hyper, weight_decay
            )
            deltas.append(_sub(y, x))
            losses += client_losses
        weights = _aggregation_weights(rnd)
        x = _add_scaled(x, server_lr, _weighted_sum(weights, deltas))
        g = _weighted_sum(weights, probes)
        stats = _track(optimizer, g, stats, hyper)
        history.append(_entry(rnd, x, deltas, losses, probe_gradient=g, **stats))
    return history


def _moving_step(optimizer, y, g, stats, hyper):
    """One ordinary optimiser step: statistics first, then y with the new ones."""
    stats = _track(optimizer, g, stats, hyper)
    direction = stats.get("m", g)
    if "v" in stats:
        direction = _map(lambda d, v: d / (np.sqrt(v) + hyper["eps"]), direction, stats["v"])
    return _add_scaled(y, -hyper["lr"], direction), stats


def mfl(params, rounds, gradient, *, optimizer, server_lr=1.0, weight_decay=0.0, **hyper):
    """MFL: statistics move with every local step; models and statistics are averaged.

    Liu et al., Accelerating Federated Learning via Momentum Gradient Descent, IEEE TPDS 2020,
    generalised to RMSProp and Adam (no bias correction) as in the FedGBO paper.
    """
    hyper = HYPER | hyper
    x, history = params, []
    stats = _init_statistics(optimizer, params, hyper["v0"])
    for rnd in rounds:
        deltas, client_stats, losses = [], [], []
        for batches in rnd["batches"]:
            y, local_stats = x, stats
            for features, labels in batches:
                loss, g = gradient(y, features, labels)
                losses.append(loss)
                g = _add_scaled(g, weight_decay, y)
                y, local_stats = _moving_step(optimizer, y, g, local_stats, hyper)
            deltas.append(_sub(y, x))
            client_stats.append(local_stats)
        weights = _aggregation_weights(rnd)
        x = _add_scaled(x, server_lr, _weighted_sum(weights, deltas))
        stats = {s: _weighted_sum(weights, [c[s] for c in client_stats]) for s in stats}
        history.append(_entry(rnd, x, deltas, losses, **stats))
    return history
