"""How much each input matters: elasticities d log(output) / d log(input).

An elasticity of -0.5 says: 1% more of the input, 0.5% less of the output. The outputs at the best real K
and eta are differentiated with the conditions that define them. With u the factors of K and eta, and f
that of an input, all of them 1, the conditions r(u, f) = 0 are

    free           d B/d K = 0:    2 drift = initial (1 + d log R/d log K)
                   d B/d eta = 0:  initial = noise + heterogeneity + drift
    clipped        K = 1 or K = max_local_steps;  eta = 1/(4L), or as given
    two budgets    time and another budget are used up together
    one round      R = 1: a larger K would not fit in

and by the implicit function theorem du/df = -(dr/du)^-1 dr/df, to the rounding of the derivatives.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.planning.optimum import bound_of
from fedjax_opt.planning.setting import (
    Setting,
    constants_of,
    inputs_of,
    known_shares,
    round_bytes,
    round_seconds,
    rounds_within,
    scaled,
    shares_of_budgets,
)

OUTPUTS = ("local steps", "learning rate", "rounds", "seconds", "bytes", "bound")
_OF_STEPS = ("free", "clipped", "one round", "two budgets")
_OF_RATE = ("free", "clipped", "limit")
_TIE = 1e-6
_ZERO = 1e-9


def condition_of_steps(
    setting: Setting, cohort_size: float, real_steps: float, max_local_steps: float
) -> str:
    """Which condition determines the best real K: 'free', 'clipped', 'two budgets' or 'one round'."""
    if real_steps <= 1 or real_steps >= max_local_steps * (1 - _TIE):
        return "clipped"
    shares = known_shares(setting, cohort_size, real_steps)
    time = shares.pop("seconds")
    if abs(time - 1) < _TIE and time >= max(shares.values()):
        return "one round"
    return "two budgets" if abs(time - max(shares.values())) < _TIE * time else "free"


def elasticities(
    setting: Setting,
    cohort_size: float,
    local_steps: float,
    learning_rate: float,
    steps_condition: str,
    rate_condition: str,
) -> dict[str, dict[str, float]]:
    """The elasticity of every output, by the input's name and the output's.

    Args:
      setting: the setting.
      cohort_size: N.
      local_steps: the best real K, or the K that is planned with.
      learning_rate: eta for it.
      steps_condition: see `condition_of_steps`.
      rate_condition: 'free', 'clipped' (as given) or 'limit' (1/(4L)).
    """
    inputs = tuple(inputs_of(setting, all_of_them=True))
    slopes, outputs = _slopes(
        np.ones(2 + len(inputs)),
        (setting, cohort_size, local_steps, learning_rate),
        (_OF_STEPS.index(steps_condition), _OF_RATE.index(rate_condition)),
        inputs,
    )
    # All factors are 1, so that a derivative by one of them is by its logarithm.
    (by_u, by_input), (through, direct) = (
        np.split(rows, [2], axis=1) for rows in np.split(np.asarray(slopes), [2])
    )
    total = direct - through @ np.linalg.solve(by_u, by_input)
    total = total / np.asarray(outputs)[:, None]
    total = np.where(np.abs(total) < _ZERO, 0.0, total)
    return {
        name: dict(zip(OUTPUTS[: len(total)], map(float, column), strict=True))
        for name, column in zip(inputs, total.T, strict=True)
        if name in inputs_of(setting)
    }


@functools.partial(jax.jit, static_argnames="inputs")
def _slopes(factors, known, conditions, inputs):
    """Derivatives of the two conditions and of all outputs by K's, eta's and the inputs' factors."""
    setting, cohort_size, local_steps, learning_rate = known

    def conditions_and_outputs(factors):
        u = factors[:2]
        changed = scaled(setting, dict(zip(inputs, factors[2:], strict=True)))
        steps, eta = local_steps * u[0], learning_rate * u[1]
        rounds, slope = jax.jvp(
            lambda steps: rounds_within(changed, cohort_size, steps), (steps,), (steps,)
        )
        seconds = rounds * round_seconds(changed, cohort_size, steps)
        outputs = [*u, rounds, seconds, rounds * cohort_size * round_bytes(changed)]
        met = u - 1
        if setting.constants is not None:
            bound = bound_of(changed, cohort_size, steps, eta)
            outputs.append(bound.value)
            initial, drift = bound.terms["initial"], bound.terms["local steps"]
            of_steps = 2 * drift - initial * (1 + slope / rounds)
            of_rate = bound.value - 2 * initial
            shares = shares_of_budgets(changed, cohort_size, steps)
            time = shares.pop("seconds")
            tie = time / functools.reduce(jnp.maximum, shares.values()) - 1
            limit = eta * 4 * constants_of(changed, cohort_size).smoothness - 1
            of_steps = jnp.stack([of_steps, met[0], rounds - 1, tie])[conditions[0]]
            of_rate = jnp.stack([of_rate, met[1], limit])[conditions[1]]
            met = jnp.stack([of_steps, of_rate])
        outputs = jnp.stack(outputs)
        return jnp.concatenate([met, outputs]), outputs

    return jax.jacfwd(conditions_and_outputs, has_aux=True)(factors)
