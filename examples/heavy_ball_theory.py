"""Speed and limit: GHBM, FedCM, FedAvg and SCAFFOLD on quadratics, with cyclic participation.

Appendix C.9 of the GHBM paper compares FedCM and GHBM where everything can be computed: ten clients, a
quadratic each, two of them in every round, in a fixed order. Here the gap f(x) - f* over all clients is
measured after every round. It answers two questions that a loss curve mixes up: how fast does an
algorithm arrive, and where?

    FedAvg         step eta
    FedCM          alpha = 0.1, step eta / 0.1; two clients, and all ten
    GHBM           beta = 0.9 (the momentum's weight), step eta, tau = 5
    GHBM, theory   beta = 0.1 (the gradient's weight), step eta / 0.1, tau = 5
    SCAFFOLD       step eta

With tau = 1 the third and the fourth would be the second, so one eta is the same step for all three.
All step sizes of an algorithm are one program, and K is an argument of it. docs/heavy_ball.md has the
plot and says what it shows.

Run:  python examples/heavy_ball_theory.py          (the plot needs matplotlib)
"""

import argparse
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_opt as fo

jax.config.update("jax_enable_x64", True)  # limits are compared far below single precision

CLIENTS, COHORT, DIMENSION, ROUNDS = 10, 2, 5, 5000
TAU = CLIENTS // COHORT
BETA, START = 0.9, 10.0
LOCAL_STEPS = [1, 5, 10]
ROUND_STEPS = [0.003, 0.01, 0.03, 0.1, 0.3]  # K eta: what a round moves, whatever K is
PLOTTED = {"small": 0.01, "large": 0.1}
EXACT = 1e-12  # a gap below it counts as none


def plain(eta):
    return fo.optimizers.sgd(eta)


def scaled(eta):
    """The step of the algorithms whose gradient has the weight 1 - BETA."""
    return fo.optimizers.sgd(eta / (1 - BETA))


# name: (the algorithm of a step eta, the size of its cohort)
ALGORITHMS = {
    "FedAvg": (lambda eta: fo.fedavg(plain(eta)), COHORT),
    "GHBM": (lambda eta: fo.ghbm(plain(eta), tau=TAU, beta=BETA), COHORT),
    "FedCM": (lambda eta: fo.fedcm(scaled(eta), alpha=1 - BETA), COHORT),
    "FedCM, all clients": (lambda eta: fo.fedcm(scaled(eta), alpha=1 - BETA), CLIENTS),
    "GHBM, theory": (lambda eta: fo.ghbm_theory(scaled(eta), tau=TAU, beta=1 - BETA), COHORT),
    "SCAFFOLD": (lambda eta: fo.scaffold(plain(eta)), COHORT),
}


def trajectories(make, quadratics):
    """A compiled function of K and of step sizes [s] that returns the models [s, rounds, d]."""

    def one_run(local_steps, eta):
        algorithm, federation = make(eta), quadratics.replace(local_steps=local_steps)

        def one_round(state, _):
            run = fo.run_rounds(algorithm, federation, state, 1)
            return run.state, run.state.variables.params["x"]

        start = fo.init_state(algorithm, federation)
        return jax.lax.scan(one_round, start, length=ROUNDS)[1]

    return jax.jit(jax.vmap(one_run, in_axes=(None, 0)))


def measure(quadratics):
    """The models after each round: [K][name] -> [step, round, d]."""
    models = {K: {} for K in LOCAL_STEPS}
    for name, (make, cohort_size) in ALGORITHMS.items():
        in_turn = quadratics.replace(cohort=fo.cohorts.cyclic(cohort_size))
        run = trajectories(make, in_turn)  # compiled once, for all K
        for K in LOCAL_STEPS:
            x = np.asarray(run(jnp.asarray(K), jnp.asarray(ROUND_STEPS) / K))
            models[K][name] = np.clip(x, -1e100, 1e100)  # what diverged can then be squared
    return models


def over_cycles(values):
    """Means over the TAU rounds up to each; the first is that of round TAU."""
    return np.lib.stride_tricks.sliding_window_view(values, TAU, axis=-1).mean(axis=-1)


def gaps(x, data, optimum):
    """f(x) - f* over all clients, without the cancellation of a difference, averaged over a cycle."""
    hessian = np.mean(data.examples["A"], axis=0)
    away = x - optimum
    return over_cycles(np.einsum("...i,ij,...j->...", away, hessian, away) / 2)


def distance(x, optimum):
    """The mean distance to the optimum over the last cycle."""
    return np.linalg.norm(x[-TAU:] - optimum, axis=-1).mean()


def arrival(gap):
    """The round from which on the gap stays below twice its limit."""
    above = np.flatnonzero(gap > max(2 * gap[-1], EXACT))
    return TAU + (above[-1] + 1 if len(above) else 0)


def number(value, width=9):
    return f"{value:{width}.1e}" if value < 1e6 else f"{'-':>{width}}"


def summary(gap, x, optimum):
    """The numbers of one run; dashes if it diverged."""
    if gap[-1] > gap[0]:
        return f"{'-':>9} {'-':>9} {'-':>9} {'-':>9} {'-':>8}"
    shown = " ".join(number(gap[rounds - TAU]) for rounds in (100, 1000, ROUNDS))
    return f"{shown} {number(distance(x, optimum))} {arrival(gap):8}"


def print_results(models, gap, optimum):
    print(f"{'gap f(x) - f* after round':>54}  distance  arrives")
    print(f"  K  K eta  algorithm                100      1000      {ROUNDS}    at end in round")
    for K in LOCAL_STEPS:
        for i, step in enumerate(ROUND_STEPS):
            print()
            for name in ALGORITHMS:
                numbers = summary(gap[K][name][i], models[K][name][i], optimum)
                print(f"{K:3}  {step:<5}  {name:18} {numbers}")
    print(
        "\n'-': the run diverges. A gap is the mean over five rounds. A run has arrived when its gap"
    )
    print(f"stays below twice its last value, or below {EXACT:g}.")


def print_shared_limits(models):
    print("\nThe largest difference of two algorithms' models in any of the last five rounds")
    print("  K  algorithms                        " + "".join(f"{s:>9}" for s in ROUND_STEPS))
    for a, b in (("GHBM", "FedAvg"), ("GHBM, theory", "FedCM, all clients"), ("GHBM", "FedCM")):
        for K in LOCAL_STEPS:
            apart = np.abs(models[K][a] - models[K][b])[:, -TAU:].max(axis=(1, 2))
            print(f"{K:3}  {f'{a} - {b}':34}" + "".join(number(value) for value in apart))


def print_best(gap):
    print("\nThe smallest gap that any of the steps gives (and its K eta)")
    print("rounds  algorithm         " + "".join(f"{f'K = {K}':>18}" for K in LOCAL_STEPS))
    for rounds in (100, 1000):
        for name in ALGORITHMS:
            shown = ""
            for K in LOCAL_STEPS:
                at = gap[K][name][:, rounds - TAU]
                shown += f"{number(at.min())} {f'({ROUND_STEPS[at.argmin()]})':8}"
            print(f"{rounds:6}  {name:18} {shown.rstrip()}")


# Pairs that end at the same place are a wide line and a narrow one on top of it.
STYLES = {
    "FedAvg": {"color": "#56B4E9", "linewidth": 5, "zorder": 1},
    "GHBM": {"color": "#00407A", "linewidth": 1.6},
    "FedCM": {"color": "#009E73", "linewidth": 1.8, "linestyle": (0, (5, 1.5))},
    "FedCM, all clients": {"color": "#F0C58A", "linewidth": 5, "zorder": 1},
    "GHBM, theory": {"color": "#D55E00", "linewidth": 1.6},
    "SCAFFOLD": {"color": "#000000", "linewidth": 1.6, "linestyle": (0, (1, 1.5))},
}
BOTTOM, TOP = 1e-10, 1e4  # of the plot


def save_plot(gap, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "heavy_ball", "font.size": 10})
    figure, axes = plt.subplots(
        len(PLOTTED), len(LOCAL_STEPS), figsize=(10, 6.6), sharex=True, sharey=True,
        layout="constrained",
    )  # fmt: skip
    shown = np.unique(np.geomspace(TAU, ROUNDS, 220).astype(int))
    for row, (size, step) in zip(axes, PLOTTED.items(), strict=True):
        for axis, K in zip(row, LOCAL_STEPS, strict=True):
            for name, style in STYLES.items():
                curve = gap[K][name][ROUND_STEPS.index(step), shown - TAU]
                near = np.where((curve > BOTTOM / 100) & (curve < TOP * 100), curve, np.nan)
                axis.loglog(shown, near, label=name, solid_capstyle="butt", **style)
                if curve[-1] > TOP:
                    leaves = shown[np.argmax(curve > TOP)]
                    axis.text(1.15 * leaves, TOP / 2, "diverges", color=style["color"], va="top")
            axis.set_title(f"K = {K}, {size} step (Kη = {step:g})", fontsize=10)
            axis.set(xlim=(TAU, ROUNDS), ylim=(BOTTOM, TOP))
            axis.grid(alpha=0.3)
            axis.spines[["top", "right"]].set_visible(False)
        row[0].set_ylabel("f(x) - f*")
    for axis in axes[-1]:
        axis.set_xlabel("round")
    handles, names = axes[0][0].get_legend_handles_labels()
    figure.legend(
        handles, names, loc="outside upper center", ncols=len(STYLES), frameon=False,
        handlelength=2.5, columnspacing=1.4,
    )  # fmt: skip
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, dpi=150, metadata=metadata)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        default=pathlib.Path("heavy_ball.svg"),
        help="where to save the plot (%(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the quadratics (%(default)s)")
    options = parser.parse_args()

    model, data, optimum = fo.data.quadratics(CLIENTS, DIMENSION, seed=options.seed)
    quadratics = fo.Federation(
        model, data, batch_size=1, batching="replacement", initial={"x": np.full(DIMENSION, START)}
    )
    models = measure(quadratics)
    gap = {
        K: {name: gaps(x, data, optimum) for name, x in runs.items()} for K, runs in models.items()
    }
    print_results(models, gap, optimum)
    print_shared_limits(models)
    print_best(gap)
    try:
        save_plot(gap, options.output)
        print(f"\nPlot: {options.output}")
    except ImportError:
        print("\nNo plot: matplotlib is missing. Install it by pip install 'fedjax_opt[bench]'.")


if __name__ == "__main__":
    main()
