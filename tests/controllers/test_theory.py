"""The controller that re-plans K: each K minimises the bound for what the run had shown by then."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from tests.core.problems import MODEL, ragged, start

pytestmark = pytest.mark.slow  # every run is compiled

DATA = ragged([4, 7, 5, 6, 8])
L, MU, NOISE, GAMMA, N, OPTIMAL = 3.0, 0.5, 0.2, 0.1, 3, 0.05
LINK = fo.bounds.Link(megabits=2.0, download_mbps=20.0, upload_mbps=5.0, seconds_per_step=0.01)
ETA, K0, WINDOW, ROUNDS, MOST = 0.02, 7, 4, 20, 60


def constants(gradient_bound):
    return fo.bounds.FedAvgConstants(
        smoothness=L, strong_convexity=MU, initial_loss=9.0, optimal_loss=OPTIMAL, noise=NOISE,
        heterogeneity=GAMMA, gradient_bound=gradient_bound, cohort_size=N,
    )  # fmt: skip


def run(gradient_bound, budget):
    controller = fo.controllers.theory(
        constants(gradient_bound), LINK, ETA, K0, budget=budget, max_steps=MOST, window=WINDOW
    )
    algorithm = fo.fedavg(fo.optimizers.sgd(ETA))
    return fo.run_rounds(
        algorithm,
        fo.Federation(MODEL, DATA, cohort=N, local_steps=controller, batch_size=2),
        start(algorithm, 5),
        ROUNDS,
    )


def bound(steps, loss, gradient_bound, seconds):
    """(8), from the paper."""
    kappa, c = L / MU, 2.0 / 20 + 2.0 / 5
    Z = NOISE + 6 * L * GAMMA + (8 + 4 / N) * gradient_bound**2 * steps**2
    first = 2 * kappa * (kappa * loss - OPTIMAL) * (c + 0.01 * steps) / (ETA * seconds * steps)
    return first + ETA * kappa * L * Z


@pytest.mark.parametrize("gradient_bound", [0.05, None])
@pytest.mark.parametrize("budget", [None, 15.0])
def test_every_k_is_the_best_one(gradient_bound, budget):
    history = jax.tree.map(np.asarray, run(gradient_bound, budget).history)
    taken = np.max(history.num_steps, axis=1)
    candidates = np.arange(1, MOST + 1)
    seconds, largest = 0.0, 0.0
    for t in range(ROUNDS):
        if t < WINDOW:
            assert taken[t] == K0
        else:
            loss = np.mean(history.first_loss[t - WINDOW : t])
            time = max(seconds if budget is None else budget - seconds, 0.51)
            G = largest if gradient_bound is None else gradient_bound
            assert taken[t] == candidates[np.argmin(bound(candidates, loss, G, time))]
        seconds += 0.5 + 0.01 * taken[t]
        largest = max(largest, history.update_norm[t] / (ETA * taken[t]))
    assert len(set(taken.tolist())) > 2


def test_a_broken_assumption_is_named():
    with pytest.warns(UserWarning, match=r"eta <= 1/\(4L\) fails"):
        fo.controllers.theory(constants(1.0), LINK, 0.5, K0)
    with pytest.warns(UserWarning, match="kappa >= 1"):
        fo.controllers.theory(constants(1.0)._replace(strong_convexity=4.0), LINK, ETA, K0)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="download_mbps"):
        fo.controllers.theory(constants(1.0), LINK._replace(download_mbps=-20.0), ETA, K0)
    with pytest.raises(ValueError, match="budget"):
        fo.controllers.theory(constants(1.0), LINK, ETA, K0, budget=0.0)
    with pytest.raises(ValueError, match="max_steps"):
        fo.controllers.theory(constants(1.0), LINK, ETA, K0, max_steps=0)
    with pytest.raises(ValueError, match="initial_steps"):
        fo.controllers.theory(constants(1.0), LINK, ETA, 0)


def test_a_run_without_loss_or_gradient_keeps_to_one_step():
    controller = fo.controllers.theory(constants(None), LINK, ETA, K0, window=1)
    state = controller.init()
    state = state._replace(window=state.window._replace(seen=jnp.asarray(1, jnp.int32)))
    assert int(controller.value(state, 0)) == 1
