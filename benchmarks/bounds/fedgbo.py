"""FedGBO's bounds beside what runs measure, on nonconvex clients whose constants are known.

    python benchmarks/bounds/fedgbo.py --output docs/images

The loss of an example is the sum over dimensions of a (1 - cos(x - phi)), so that L, R, G, sigma and F*
follow from its coefficients. `bound_fedgbo.svg` shows Theorem 1 and Lemma 1 on clients that differ, and
equation 3 on clients that do not: there the paper's form, without a term for the momentum, falls below
what is measured whenever the gradient vanishes. It takes half a minute.
"""

import argparse
import pathlib
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_opt as fo

CLIENTS, EXAMPLES, COHORT, DIMENSION = 20, 10, 5, 5
STEPS, ROUNDS, SEEDS = 8, 3000, 8
LARGE_STEP = 0.25  # eta~ L in the runs that are to show equation 3


class Problem(NamedTuple):
    """A federation, where training starts, its constants, and the mean of a exp(i phi)."""

    data: fo.ClientData
    start: np.ndarray
    constants: fo.bounds.FedGBOConstants
    coefficients: np.ndarray


def loss(variables, batch, key):
    """The sum over dimensions of a (1 - cos(x - phi))."""
    del key
    losses = (batch["a"] * (1 - jnp.cos(variables.params["x"][None] - batch["phi"]))).sum(1)
    return losses.mean(), fo.Aux(losses=losses)


MODEL = fo.Model(init=lambda key, batch: fo.Variables({"x": jnp.zeros(DIMENSION)}), loss=loss)


def draw(seed: int, alike: bool = False) -> Problem:
    """A random federation; `alike` with no difference between clients, examples and dimensions."""
    rng = np.random.default_rng(seed)
    shape = (CLIENTS, EXAMPLES, DIMENSION)
    centre = 0.7 * rng.normal(size=(CLIENTS, 1, DIMENSION))
    a, phi = rng.uniform(0.5, 1.5, shape), centre + 0.7 * rng.normal(size=shape)
    start = rng.uniform(1.5, 3.0, DIMENSION)
    if alike:
        a, phi, start = np.ones(shape), np.zeros(shape), np.full(DIMENSION, 2.0)
    z = a * np.exp(1j * phi)
    mean = z.mean((0, 1))
    constants = fo.bounds.FedGBOConstants(
        smoothness=a.max(),
        initial_loss=(a.mean((0, 1)) - (mean * np.exp(-1j * start)).real).sum(),
        gradient_bound=np.sqrt((a**2).sum(-1).max()),
        dissimilarity=np.sqrt(spread(z.mean(1))),
        noise_variance=max(map(spread, z)),
        optimal_loss=(a.mean((0, 1)) - abs(mean)).sum(),
    )
    dtype = np.dtype(jnp.result_type(float))
    clients = [{"a": a[i].astype(dtype), "phi": phi[i].astype(dtype)} for i in range(CLIENTS)]
    return Problem(fo.ClientData.from_list(clients), start.astype(dtype), constants, mean)


def spread(z: np.ndarray) -> float:
    """The largest mean of ||g_i(x) - mean g(x)||^2 over all x, for gradients with coefficients z_i.

    In each dimension g_i = Re z_i sin(x) - Im z_i cos(x): a quadratic form of a unit vector.
    """
    away = z - z.mean(0)
    v = np.stack([away.real, away.imag])
    return np.linalg.eigvalsh(np.einsum("jid,kid->djk", v, v) / len(z))[:, -1].sum()


def play(problem: Problem, pseudo_learning_rate: float, beta: float) -> dict[str, np.ndarray]:
    """||grad F(x_t)||^2, ||m_t||^2 (a sum of gradients) and ||e_t||^2: `[seeds, rounds]`."""
    eta = pseudo_learning_rate / STEPS / (1 - beta)
    algorithm = fo.fedgbo(fo.optimizers.sgdm(eta, beta))
    sines = fo.Federation(
        MODEL, problem.data, cohort=COHORT, local_steps=STEPS, batch_size=1,
        batching="replacement", weighting="uniform",
    )  # fmt: skip
    real, imag = map(jnp.asarray, (problem.coefficients.real, problem.coefficients.imag))

    def one_round(state, _):
        run = fo.run_rounds(algorithm, sines, state, 1, diagnostics=["perturbation_norm"])
        x, m = state.variables.params["x"], state.server.optimizer.m["x"] / (1 - beta)
        gradient = real * jnp.sin(x) - imag * jnp.cos(x)
        perturbation = run.history.diagnostics["perturbation_norm"][0]
        squares = jnp.sum(gradient**2), jnp.sum(m**2), perturbation**2
        return run.state, dict(zip(("gradient", "momentum", "perturbation"), squares, strict=True))

    @jax.jit
    @jax.vmap
    def run_all(key):
        state = fo.first_state(algorithm, {"x": jnp.asarray(problem.start)}, CLIENTS, key)
        return jax.lax.scan(one_round, state, None, length=ROUNDS)[1]

    keys = jax.random.split(jax.random.key(0), SEEDS)
    return jax.tree.map(np.asarray, run_all(keys))


def random_round(gradients: np.ndarray, beta: float, rounds: np.ndarray) -> np.ndarray:
    """E||grad F(x_t)||^2 for each T, t drawn with weights 1 - beta^(T-t), and over the seeds."""
    means = []
    for T in rounds:
        weights = 1 - beta ** (T - np.arange(T))
        means.append((gradients[:, :T] * weights).mean(0).sum() / weights.sum())
    return np.array(means)


def measure() -> list[dict[str, Any]]:
    """The panels: their titles, labels and curves."""
    beta = 0.9
    problem = draw(0)
    constants = problem.constants._replace(update_bound=1 / (1 - beta))
    best = fo.bounds.fedgbo_optimal_learning_rate(constants, beta, STEPS, ROUNDS)
    pseudo = float(best.value)
    runs = play(problem, pseudo, beta)
    rounds = np.unique(np.geomspace(2 / (1 - beta), ROUNDS, 60).astype(int))
    theorem = jax.vmap(partial(fo.bounds.fedgbo, constants, pseudo, beta, STEPS))(
        jnp.asarray(rounds)
    )
    lemma = fo.bounds.fedgbo_momentum(constants, pseudo, beta, STEPS)
    assert bool(lemma.holds) and bool(jnp.all(theorem.holds))
    every = np.arange(1, ROUNDS + 1)
    shown = np.unique(np.geomspace(1, ROUNDS, 200).astype(int)) - 1
    momentum = runs["momentum"].mean(0)

    alike, fast = draw(1, alike=True), 0.95
    step = LARGE_STEP / float(alike.constants.smoothness)
    plain = jax.tree.map(lambda square: square[0], play(alike, step, fast))
    early = np.arange(60)
    bound = partial(fo.bounds.fedgbo_perturbation, alike.constants, step, STEPS)
    gradient, velocity = plain["gradient"][early], fast**2 * plain["momentum"][early]
    return [
        {
            "title": f"Theorem 1, β = {beta:g}",
            "label": "E‖∇F‖² at a random round below T",
            "x": "T",
            "log": True,
            "curves": {
                "bound": (rounds, theorem.value),
                "measured": (rounds, random_round(runs["gradient"], beta, rounds)),
            },
        },
        {
            "title": f"Lemma 1, β = {beta:g}",
            "label": "E‖m‖²",
            "x": "round",
            "log": True,
            "curves": {
                "bound": (every[shown], np.full(len(shown), float(lemma.value))),
                "measured": (every[shown][1:], momentum[shown][1:]),
            },
        },
        {
            "title": f"Equation 3, equal clients, β = {fast:g}",
            "label": "‖e‖²",
            "x": "round",
            "log": False,
            "curves": {
                "bound": (early, jax.vmap(bound)(gradient, velocity).value),
                "measured": (early, plain["perturbation"][early]),
                "bound without its momentum": (early, jax.vmap(bound)(gradient).value),
            },
        },
    ]


STYLES = {
    "bound": {"color": "#D55E00", "linestyle": "--"},
    "measured": {"color": "#0072B2", "linestyle": "-"},
    "bound without its momentum": {"color": "#009E73", "linestyle": ":"},
}


def save(panels: list[dict[str, Any]], path: pathlib.Path) -> None:
    """One row of panels, as SVG or whatever the ending of the path says."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "bound_fedgbo", "font.size": 10})
    # White behind it: the text is dark, and the page may be, too.
    figure, axes = plt.subplots(
        1, len(panels), figsize=(12, 3.9), layout="constrained", facecolor="white"
    )
    handles = {}
    for axis, panel in zip(axes, panels, strict=True):
        for name, (x, y) in panel["curves"].items():
            handles[name] = axis.plot(x, y, linewidth=2, label=name, **STYLES[name])[0]
        axis.set_yscale("log")
        if panel["log"]:
            axis.set_xscale("log")
        axis.set_title(panel["title"], fontsize=10)
        axis.set_xlabel(panel["x"])
        axis.set_ylabel(panel["label"])
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(
        handles.values(), handles.keys(), loc="outside upper center", ncols=len(handles),
        frameon=False, handlelength=3,
    )  # fmt: skip
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, dpi=150, metadata=metadata)
    plt.close(figure)


def main() -> None:
    """Measures, and draws."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("docs/images"))
    parser.add_argument("--format", default="svg", choices=("svg", "png"))
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    panels = measure()
    for panel in panels:
        (_, bound), (_, found) = panel["curves"]["bound"], panel["curves"]["measured"]
        share = np.max(np.asarray(found) / np.asarray(bound)[-len(found) :])
        print(f"{panel['title']}: at most {share:.3f} of the bound")
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"bound_fedgbo.{options.format}"
    save(panels, path)
    print(f"saved {path}")


if __name__ == "__main__":
    main()
