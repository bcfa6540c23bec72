"""The error of using old pseudo-gradients again, over the number of rounds that they are of.

    || (1/tau) sum_{k = t-tau+1 .. t} g_k  -  f_t ||

with g_k the pseudo-gradient of round k, the mean displacement of its cohort at the model of that round,
and f_t that of all clients at the model of round t. It is not a comparison of directions, as
`momentum_deviation` is, and needs no momentum.

Reference:
  Zaccone, Karimireddy, Masone, Ciccone. Communication-efficient federated learning with generalized
  heavy-ball momentum. 2024. Figure 1.
"""

from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core import Algorithm, Federation, checks, trees
from fedjax_opt.core.federation import init_state
from fedjax_opt.engine.run import run_rounds


def reuse_error(
    algorithm: Algorithm,
    federation: Federation,
    rounds: int,
    taus: Sequence[int],
    seed: int | chex.PRNGKey = 0,
) -> np.ndarray:
    """How far the mean of the last tau pseudo-gradients is from that of all clients: GHBM's Figure 1.

    Every round is played twice from the same state, by its cohort, with which training goes on, and by
    all clients. A pseudo-gradient is what the round takes off the model, so the algorithm must be one
    whose server adds the mean displacement and no momentum, such as `fedavg`, `fedprox` or `ghbm`.

    Args:
      algorithm: how the clients train.
      federation: whose cohort is that of the training.
      rounds: T.
      taus: over how many rounds to average, each at least 1.
      seed: the run's seed.

    Returns:
      The norms `[taus, T]`; NaN while fewer than tau rounds have been played.

    Example:
      With a fifth of the clients in turn, five rounds see all of them:

      >>> import fedjax_opt as fo
      >>> model, data, _ = fo.data.quadratics(num_clients=5, dimension=3)
      >>> federation = fo.Federation(
      ...     model, data, cohort=fo.cohorts.cyclic(1), local_steps=2, batch_size=1
      ... )
      >>> errors = fo.metrics.reuse_error(fo.fedavg(fo.optimizers.sgd(0.01)), federation, 20, [1, 5])
      >>> bool(errors[1, 5:].mean() < errors[0, 5:].mean() / 2)
      True
    """
    rounds = checks.integer("rounds", rounds, low=1)
    taus = [checks.integer("taus", tau, low=1) for tau in taus]
    if not taus:
        raise ValueError("taus must name one or more numbers of rounds, got none.")
    everyone = federation.replace(cohort=federation.num_clients)
    longest = max(taus)

    def moved(before, after):
        return trees.subtract(before.variables.params, after.variables.params)

    def one(carry, t):
        state, recent = carry
        new = run_rounds(algorithm, federation, state, 1).state
        full = moved(state, run_rounds(algorithm, everyone, state, 1).state)
        recent = jax.tree.map(
            lambda ring, g: jnp.roll(ring, 1, axis=0).at[0].set(g), recent, moved(state, new)
        )
        errors = []
        for tau in taus:
            mean = jax.tree.map(lambda ring, tau=tau: jnp.mean(ring[:tau], axis=0), recent)
            error = trees.norm(trees.subtract(mean, full))
            errors.append(jnp.where(t + 1 >= tau, error, jnp.nan))
        return (new, recent), jnp.stack(errors)

    state = init_state(algorithm, federation, seed)
    empty = jax.tree.map(lambda x: jnp.zeros((longest, *x.shape), x.dtype), state.variables.params)
    numbers = jnp.arange(rounds, dtype=jnp.int32)
    return np.asarray(jax.lax.scan(one, (state, empty), numbers)[1]).T
