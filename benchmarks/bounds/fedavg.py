"""Draw FedAvg's bound against what FedAvg does, with a fixed and with a decaying number of local steps.

Each problem is five clients with quadratic losses of their own, whose minibatch gradients add noise
of a known variance; so L, mu, F*, Gamma and sigma^2 are exact. G is one that can be proven: it bounds
the gradients in a ball that no client's model can leave. The theorem bounds the smallest E||grad F||^2
over all local steps, its proof the mean over them. Both are measured between rounds: the smallest there
is no smaller than over all steps, and a round counts in the mean with its K_r.

Run:  python benchmarks/bounds/fedavg.py --output docs/images     (half a minute on two cores)
"""

import argparse
import pathlib
import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_opt as fo

PROBLEMS, CLIENTS, DIMENSION, SEEDS = 24, 5, 5, 4
FIRST_STEPS = 8
LEARNING_RATE = 0.02  # in units of 1/L
ITERATIONS = 4000
STYLES = {
    "bound": {"color": "#0072B2", "linestyle": "--"},
    "mean so far": {"color": "#009E73", "linestyle": "-."},
    "smallest so far": {"color": "#D55E00", "linestyle": "-"},
}
TITLES = {
    "fixed K": f"$K = {FIRST_STEPS}$",
    "decaying K": rf"$K_r = \lceil {FIRST_STEPS}\,r^{{-1/3}} \rceil$",
}


class Problem(NamedTuple):
    """Client c minimises (x - b_c)^T H_c (x - b_c)/2 + a_c; its gradients have the variance sigma^2."""

    curvature: Any
    centre: Any
    offset: Any
    sigma: Any
    start: Any


def draw_problem(generator: np.random.Generator) -> tuple[Problem, fo.bounds.FedAvgConstants]:
    """A problem with L = 1 and a condition number of up to 10, and its exact constants."""
    d = DIMENSION
    rotations = np.linalg.qr(generator.normal(size=(CLIENTS, d, d)))[0]
    kappa = 10 ** generator.uniform(0.1, 1.0)
    eigenvalues = kappa ** -generator.random((CLIENTS, d))
    eigenvalues[0, 0], eigenvalues[1, 0] = 1.0, 1 / kappa
    curvature = np.einsum("nij,nj,nkj->nik", rotations, eigenvalues, rotations)
    centre = 10 ** generator.uniform(-1.5, 0) * generator.normal(size=(CLIENTS, d))
    sigma = 10 ** generator.uniform(-1.5, 0)

    best = np.linalg.solve(curvature.sum(0), np.einsum("nij,nj->i", curvature, centre))
    start = best + 3 * generator.normal(size=d)

    def loss(x):
        away = x - centre
        return np.mean(np.einsum("ni,nij,nj->n", away, curvature, away)) / 2

    gamma = loss(best)
    pulls = np.linalg.norm(np.einsum("nij,nj->ni", curvature, best - centre), axis=1)
    # A step takes ||y - x*|| to at most (1 - eta mu) ||y - x*|| + eta (||grad f_c(x*)|| + sigma).
    radius = max(np.linalg.norm(start - best), kappa * (pulls.max() + sigma))
    constants = fo.bounds.FedAvgConstants(
        smoothness=1.0,
        strong_convexity=1 / kappa,
        initial_loss=loss(start) - gamma,
        gradient_bound=np.hypot(radius + pulls.max(), sigma),
        cohort_size=float(CLIENTS),
        optimal_loss=0.0,
        noise=sigma**2 / CLIENTS,
        heterogeneity=gamma,
    )
    return Problem(curvature, centre, np.full(CLIENTS, -gamma), sigma, start), constants


def _init(key, batch):
    del key
    return fo.Variables(jnp.zeros_like(batch["centre"][0]))


def _loss(variables, batch, key):
    del key
    x = variables.params[None]
    away = x - batch["centre"]
    losses = jnp.einsum("ni,nij,nj->n", away, batch["curvature"], away) / 2 + batch["offset"]
    return jnp.mean(losses + jnp.sum(batch["noise"] * x, axis=-1)), fo.Aux()


MODEL = fo.Model(_init, _loss)


def models_before_rounds(problem: Problem, steps: Any, key: Any) -> jax.Array:
    """The global models `[R, d]` of FedAvg with all clients, and K_r in `steps`.

    A client's examples are the 2d directions +-sigma e_j of its noise; a minibatch is one of them.
    """
    directions = jnp.concatenate([jnp.eye(DIMENSION), -jnp.eye(DIMENSION)])
    count = len(directions)
    per_client = (problem.curvature, problem.centre, problem.offset)
    curvature, centre, offset = (jnp.repeat(leaf, count, axis=0) for leaf in per_client)
    noise = problem.sigma * jnp.tile(directions, (CLIENTS, 1))
    examples = {"curvature": curvature, "centre": centre, "offset": offset, "noise": noise}
    sizes = np.full(CLIENTS, count, np.int32)
    data = fo.ClientData(examples, np.arange(CLIENTS, dtype=np.int32) * count, sizes)
    quadratics = fo.Federation(MODEL, data, cohort=CLIENTS, batch_size=1, batching="replacement")
    algorithm = fo.fedavg(fo.optimizers.sgd(LEARNING_RATE))

    def one(state, local_steps):
        federation = quadratics.replace(local_steps=local_steps)
        run = fo.run_rounds(algorithm, federation, state, 1, strategy="vmap")
        return run.state, state.variables.params

    state = fo.first_state(algorithm, fo.Variables(problem.start), CLIENTS, key)
    return jax.lax.scan(one, state, steps)[1]


@jax.jit
def squared_gradients(problems: Problem, steps: Any, key: Any) -> jax.Array:
    """E||grad F||^2 before every round, `[problems, R]`."""
    keys = jax.random.split(key, (PROBLEMS, SEEDS))
    seeds = jax.vmap(models_before_rounds, in_axes=(None, None, 0))
    models = jax.vmap(seeds, in_axes=(0, None, 0))(problems, steps, keys)
    away = models[:, :, :, None] - problems.centre[:, None, None]
    gradient = jnp.einsum("fnij,fsrnj->fsri", problems.curvature, away) / CLIENTS
    return jnp.mean(jnp.sum(gradient**2, axis=-1), axis=1)


@partial(jax.jit, static_argnums=3)
def bounds_after(constants: Any, steps: Any, rounds: Any, rate: float) -> fo.bounds.Bound:
    """Theorem 1 after the given numbers of rounds, `[problems, rounds]`."""

    def after(constants, count):
        played = jnp.where(jnp.arange(len(steps)) < count, steps, 0)
        return fo.bounds.fedavg(constants, rate, played)

    every_count = jax.vmap(after, in_axes=(None, 0))
    return jax.vmap(every_count, in_axes=(0, None))(constants, rounds)


def schedules() -> dict[str, np.ndarray]:
    """K_r by name, of as many rounds as the iterations allow."""
    rounds = np.arange(1, ITERATIONS + 1)
    choices = {
        "fixed K": np.full(ITERATIONS, FIRST_STEPS),
        "decaying K": np.ceil(FIRST_STEPS * rounds ** (-1 / 3)),
    }
    return {name: k[np.cumsum(k) <= ITERATIONS].astype(np.int32) for name, k in choices.items()}


def draw(curves: dict[str, dict[str, Any]], path: pathlib.Path) -> None:
    """One panel for each schedule: thin lines for problems, thick ones for their medians."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "bound_fedavg", "font.size": 10})
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(curves), figsize=(9, 3.8), sharex=True, sharey=True, layout="constrained",
        facecolor="white",
    )  # fmt: skip
    for axis, (schedule, panel) in zip(axes, curves.items(), strict=True):
        for name, style in STYLES.items():
            x, curve = panel["iterations"], panel[name]
            axis.loglog(x, curve.T, **style, linewidth=0.6, alpha=0.35)
            axis.loglog(x, np.median(curve, axis=0), **style, linewidth=2.4, label=name)
        axis.set_title(TITLES[schedule])
        axis.set(xlabel="local steps T", xlim=(panel["iterations"][0], ITERATIONS))
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("E||∇F||²")
    axes[0].legend(loc="lower left", edgecolor="none", framealpha=0.8, handlelength=3)
    metadata = {"Title": "FedAvg: the bound and the measurement", "Date": None}
    figure.savefig(path, dpi=150, metadata=metadata if path.suffix == ".svg" else None)
    plt.close(figure)


def main() -> None:
    """Measures, compares and draws."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("docs/images"))
    parser.add_argument("--format", default="svg", choices=("svg", "png"))
    options = parser.parse_args()
    started = time.perf_counter()
    generator = np.random.default_rng(0)
    drawn = [draw_problem(generator) for _ in range(PROBLEMS)]
    problems, constants = jax.tree.map(lambda *leaves: jnp.stack(leaves), *drawn)
    curves = {}
    for name, steps in schedules().items():
        rounds = np.unique(np.geomspace(1, len(steps), 80).astype(int))
        gradients = np.asarray(squared_gradients(problems, steps, jax.random.key(1)))
        bound = bounds_after(constants, steps, rounds, LEARNING_RATE)
        if not np.all(bound.holds):
            raise AssertionError(f"the bound assumes what is not so: {bound.violated()}")
        # After r rounds the models before rounds 1 .. r have been seen.
        panel = {
            "iterations": np.cumsum(steps)[rounds - 1],
            "bound": np.asarray(bound.value),
            "mean so far": (np.cumsum(steps * gradients, axis=1) / np.cumsum(steps))[:, rounds - 1],
            "smallest so far": np.minimum.accumulate(gradients, axis=1)[:, rounds - 1],
        }
        curves[name] = panel
        for measured in ("mean so far", "smallest so far"):
            ratio = panel["bound"] / panel[measured]
            print(
                f"{name:10} {len(steps):4} rounds: bound / {measured:15} {ratio.min():.3g} to"
                f" {ratio.max():.3g}, median at the end {np.median(ratio[:, -1]):.3g}"
            )
            if np.any(ratio < 1):
                raise AssertionError(f"{measured}: {np.sum(ratio < 1)} points lie above the bound")
    options.output.mkdir(parents=True, exist_ok=True)
    draw(curves, options.output / f"bound_fedavg.{options.format}")
    print(f"{time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
