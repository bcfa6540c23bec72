"""The schedules of K and of the learning rate against simulated time; and what K costs.

Two measurements:
- On digits, the paper's eight schedules and `theory` train the same model from the same seeds. A
  round's simulated time is that of a Raspberry Pi on 4G (`fedjax_opt.costs`).
- Seconds of the clock per round as K falls, in one compiled program.

Run:  python benchmarks/controllers/run.py             (six minutes on two cores)
      python benchmarks/controllers/run.py --redraw    (from benchmarks/results/controllers.json)
"""

import argparse
import json
import pathlib
import re
import time

import numpy as np

import fedjax_opt as fo

fo.use_cpu_devices()  # before JAX starts

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "controllers.json"
IMAGES = ROOT / "docs" / "images"
TASK = {
    "clients": 100, "alpha": 0.1, "cohort_size": 10, "batch_size": 8, "rounds": 1000,
    "evaluate_every": 20, "K0": 40, "eta0": 0.05, "window": 50, "patience": 5, "seeds": 3,
    "validation": 300, "target": 0.95,
}  # fmt: skip
# As the paper has it: 4G for the link, and the time of a step that it measured for its smallest model.
DEVICES = fo.planning.paper_tasks()["Sent140"].devices
MODEL = fo.models.mlp([64], num_classes=10)


def build(eta):
    """The algorithm as a function of its learning rate."""
    return fo.fedavg(fo.optimizers.sgd(eta))


def load_data():
    """Clients, validation and test."""
    train, test = fo.data.load_digits()
    order = np.random.default_rng(0).permutation(len(train["y"]))
    held, kept = order[: TASK["validation"]], order[TASK["validation"] :]
    validation = {name: jnp.asarray(values[held]) for name, values in train.items()}
    train = {name: values[kept] for name, values in train.items()}
    owners = fo.data.dirichlet(train["y"], TASK["clients"], TASK["alpha"])
    return fo.ClientData.from_arrays(train, owners, TASK["clients"]), validation, test


def schedules(megabits):
    """The paper's eight, and the one that re-plans from the bound."""
    named = fo.controllers.paper_schedules(
        TASK["K0"], TASK["eta0"], window=TASK["window"], patience=TASK["patience"],
        every=TASK["evaluate_every"],
    )  # fmt: skip
    # Rough constants: what matters to K is A c/(eta^2 L G^2); G is measured as the run goes.
    constants = fo.bounds.FedAvgConstants(
        smoothness=2.0, strong_convexity=2.0, initial_loss=2.3, gradient_bound=None,
        cohort_size=TASK["cohort_size"],
    )  # fmt: skip
    link = fo.bounds.Link(megabits, 20.0, 5.0, float(DEVICES.seconds_per_step))
    theory = fo.controllers.theory(
        constants, link, TASK["eta0"], TASK["K0"], max_steps=TASK["K0"], window=TASK["window"]
    )
    named["theory"] = fo.controllers.Schedule(theory, fo.controllers.constant(TASK["eta0"]))
    return named


def train(schedule, data, validation, test):
    """Accuracy `[seeds, evaluations]`, K and eta `[seeds, rounds]`, cohorts; one program."""
    every = TASK["evaluate_every"]
    algorithm = fo.scheduled(build, schedule.learning_rate)
    digits = fo.Federation(
        MODEL, data, cohort=TASK["cohort_size"], local_steps=schedule.local_steps,
        batch_size=TASK["batch_size"], validation=validation,
    )  # fmt: skip

    def one_run(seed):
        key = jax.random.key(seed)
        begun = digits.replace(initial=MODEL.init(key, data[0]))
        state = fo.init_state(algorithm, begun)._replace(key=key)

        def some_rounds(state, _):
            run = fo.run_rounds(algorithm, digits, state, every, strategy="vmap")
            seen = (
                fo.evaluate(MODEL, run.state.variables, test, batch_size=512)["accuracy"],
                run.history.num_steps,
                run.history.cohort,
                run.history.diagnostics["learning_rate"],
                run.history.first_loss,
            )
            return run.state, seen

        return jax.lax.scan(some_rounds, state, length=TASK["rounds"] // every)[1]

    found = jax.jit(jax.vmap(one_run))(jnp.arange(TASK["seeds"]))
    accuracy, steps, cohort, rate, loss = map(np.asarray, found)
    flat = (TASK["seeds"], TASK["rounds"])
    return {
        "accuracy": accuracy,
        "num_steps": steps.reshape(*flat, -1),
        "cohort": cohort.reshape(*flat, -1),
        "rate": rate.reshape(flat),
        "loss": loss.reshape(flat),
    }


def compare():
    """Every schedule's curve over simulated time."""
    data, validation, test = load_data()
    variables = MODEL.init(jax.random.key(0), data[0])
    prices = fo.costs.Prices(traffic=fo.costs.of(build(0.1), variables), devices=DEVICES)
    up = fo.costs.megabits(prices.traffic.bytes_up)
    rows = {}
    for name, schedule in schedules(up).items():
        started = time.perf_counter()
        found = train(schedule, data, validation, test)
        seconds = fo.costs.spent(found, prices).seconds.mean(axis=0)
        every = TASK["evaluate_every"]
        curve = found["accuracy"].mean(axis=0)
        reached = np.flatnonzero(curve >= TASK["target"])
        first = int(reached[0] + 1) * every if len(reached) else None
        steps = found["num_steps"].max(axis=2).mean(axis=0)
        rows[name] = {
            "accuracy": curve.round(4).tolist(),
            "seconds": seconds[every - 1 :: every].round(1).tolist(),
            "steps": steps[every - 1 :: every].round(2).tolist(),
            "rate": found["rate"].mean(axis=0)[every - 1 :: every].round(5).tolist(),
            "relative_steps": float(steps.sum() / (TASK["K0"] * TASK["rounds"])),
            "rounds_to_target": first,
            "seconds_to_target": None if first is None else float(seconds[first - 1]),
            "best_accuracy": float(curve.max()),
        }
        clock = time.perf_counter() - started
        print(f"{name:11} best {curve.max():.3f}, {seconds[-1]:7.0f} simulated s, {clock:.0f} s")
    return rows


def clock_against_steps(repeats=5, rounds=5):
    """Seconds per round for several K, of one compiled program; the K take turns in each repeat."""
    rng = np.random.default_rng(0)
    clients, examples, width = 60, 320, 784
    data = fo.ClientData.from_list(
        [
            {
                "x": rng.standard_normal((examples, width), dtype=np.float32),
                "y": rng.integers(62, size=examples),
            }
            for _ in range(clients)
        ]
    )
    traces = []
    plain = fo.models.mlp([200, 200], num_classes=62)

    def loss(variables, batch, key):
        traces.append(None)
        return plain.loss(variables, batch, key)

    model = fo.Model(plain.init, loss)
    algorithm = fo.fedavg(fo.optimizers.sgd(0.01))
    federation = fo.place(fo.Federation(model, data, cohort=clients, batch_size=32))
    start = fo.place(fo.init_state(algorithm, federation))

    def run(controller):
        controlled = federation.replace(local_steps=controller)
        started = time.perf_counter()
        result = fo.run_rounds(algorithm, controlled, start, rounds)
        jax.block_until_ready(result)
        return (time.perf_counter() - started) / rounds

    steps = [1, 2, 5, 10, 20, 40, 80]
    run(fo.controllers.steps_by_rounds(5))
    compiled = len(traces)
    # Five rounds of the decay would mix values of K, so each is held: the program is another one.
    run(fo.controllers.constant(jnp.int32(1)))
    held = len(traces)
    times = {k: [] for k in steps}
    for _ in range(repeats):
        for k in steps:
            times[k].append(run(fo.controllers.constant(jnp.int32(k))))
    run(fo.controllers.steps_by_rounds(80))
    if len(traces) != held:
        raise SystemExit("A change of K was compiled anew.")
    print(
        f"loss traced {compiled} times for one program, {held - compiled} for the other, then never"
    )
    medians = {k: float(np.median(v)) for k, v in times.items()}
    for k, seconds in medians.items():
        print(
            f"K = {k:3}: {1000 * seconds:7.1f} ms per round, {seconds / medians[80]:.3f} of K = 80"
        )
    return {str(k): [round(t, 5) for t in v] for k, v in times.items()}


def main():
    """Measures, saves, draws."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--redraw", action="store_true", help="draw what was saved, measure nothing"
    )
    parser.add_argument("--clock-only", action="store_true", help="measure the clock alone")
    parser.add_argument("--output", type=pathlib.Path, default=IMAGES, help="where plots go")
    options = parser.parse_args()
    saved = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not options.redraw:
        if not options.clock_only:
            saved["schedules"] = compare()
            saved["task"] = TASK
        saved["clock"] = clock_against_steps()
        text = re.sub(r"\[[^][]*\]", lambda m: " ".join(m[0].split()), json.dumps(saved, indent=1))
        RESULTS.write_text(text + "\n", encoding="utf-8")  # every list on one line
    from draw import draw

    draw(saved, options.output)


if __name__ == "__main__":
    main()
