"""Do two checkouts draw the same cohorts and minibatches, and end in the same state?

    python benchmarks/compare_checkouts.py ../before .
    python benchmarks/compare_checkouts.py ../before . --algorithms fedavg,scaffold-1 --strategies vmap

Every algorithm of the shared matrix is run for 20 rounds in float64 with each strategy, and a few that
are not in it with one of them, on 7 clients in cohorts of 5: 'sharded' divides them over 2 devices. An
algorithm meets another of the four problems with each strategy (`--all-problems`: all of them):

    steady      quadratics, batches with replacement, K = 3 compiled in
    shuffled    an MLP, shuffled epochs over clients of different sizes, K = 3 as a number
    unequal     an MLP, shuffled epochs, K = 1, 2, 3, ... by client
    unreliable  an MLP, clients that drop out and stragglers

The minibatches are seen in a metric: the mean of a random number that each example carries. Each
checkout runs in a process of its own. What only one of them has is named and not compared. Nearly all
of the time is compiling: with JAX_COMPILATION_CACHE_DIR set, it is needed once for each checkout.
"""

import argparse
import importlib.util
import itertools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parents[1]
STRATEGIES = ("scan", "vmap", "chunked", "sharded")
PROBLEMS = ("steady", "shuffled", "unequal", "unreliable")
NUM_CLIENTS, COHORT, ROUNDS, SEED = 7, 5, 20, 3
# Equal in both; all other numbers may differ by rounding.
EXACT = ("round", "cohort", "num_steps")
# The parameters of the quadratics are one leaf: none of it can be kept apart.
WITHOUT = {("private-fedavg", "steady")}
# A part of a state whose entries are below this share of the largest is compared with that share.
SMALL = 1e-3


def matrix_of(fo: Any) -> dict[str, Any]:
    """name -> (learning rate -> algorithm), of the matrix that all tests share."""
    path = HERE / "tests" / "algorithms" / "matrix.py"
    spec = importlib.util.spec_from_file_location("matrix", path)
    assert spec is not None and spec.loader is not None
    matrix = importlib.util.module_from_spec(spec)
    sys.modules["matrix"] = matrix
    spec.loader.exec_module(matrix)
    return {name: row.make for name, row in matrix.ROWS.items()}


def others_of(fo: Any) -> dict[str, Any]:
    """What has no row in the matrix, and some wrapped ones; each meets one strategy only."""
    opt, codecs, wrap = fo.optimizers, fo.compression, fo.aggregators
    return {
        "adaptive-fedopt": lambda lr: fo.adaptive_fedopt(opt.sgd(lr), opt.adam(0.1, eps=0.1)),
        "per-fedavg": lambda lr: fo.per_fedavg(opt.sgd(lr), 0.1),
        "independent": lambda lr: fo.independent(opt.sgd(lr)),
        "ce-fedavg": lambda lr: fo.ce_fedavg(opt.adam(lr, 0.7, 0.9, 0.1, 0.0), 0.5),
        "compressed-fedavg": lambda lr: fo.compressed_fedavg(opt.sgd(lr), 0.5),
        "noisy-codec": lambda lr: fo.compressed(
            fo.fedavg(opt.sgd(lr)), codecs.random_k(sparsity=0.5), error_feedback=True
        ),
        "clipped-scaffold": lambda lr: fo.clipped(fo.scaffold(opt.sgd(lr)), 0.5),
        "private-fedavg": lambda lr: fo.private(fo.fedavg(opt.sgd(lr)), "params/b"),
        "median-fedavg": lambda lr: fo.aggregated(fo.fedavg(opt.sgd(lr)), wrap.coordinate_median()),
        "decayed-mime": lambda lr: fo.weight_decay(fo.mime(opt.sgdm(lr, 0.5)), 0.01),
    }


# The worker: one checkout's numbers -------------------------------------------------------------


class Problem(NamedTuple):
    """A model, its clients, the first variables, and the settings of a run."""

    model: Any
    clients: Any
    variables: Any
    cohort: Any
    settings: dict[str, Any]


def problem(fo: Any, name: str) -> Problem:
    """One of PROBLEMS."""
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    cohort = fo.cohorts.uniform(COHORT)
    if name == "steady":
        model, clients, _ = fo.data.quadratics(
            num_clients=NUM_CLIENTS, dimension=3, noise=0.3, num_examples=6
        )
        examples = dict(clients.examples)
        variables = fo.Variables({"x": jnp.asarray(rng.normal(size=3))})
        settings = {"local_steps": 3, "batching": "replacement", "weighting": "uniform"}
    else:
        sizes = rng.integers(3, 12, size=NUM_CLIENTS)
        total = int(sizes.sum())
        centres = np.repeat(rng.normal(size=(NUM_CLIENTS, 4)), sizes, axis=0)
        examples = {
            "x": centres + rng.normal(size=(total, 4)),
            "y": rng.integers(0, 3, size=total).astype(np.int32),
        }
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        parts = [slice(a, b) for a, b in itertools.pairwise(offsets)]
        clients = fo.ClientData.from_list([{k: v[p] for k, v in examples.items()} for p in parts])
        shapes = {"w": (4, 5), "b": (5,), "v": (5, 3), "c": (3,)}
        variables = fo.Variables({k: jnp.asarray(rng.normal(size=s)) for k, s in shapes.items()})
        try:
            model = fo.models.classifier(None, _mlp, features=1)
        except TypeError:  # before features were asked for by their place
            model = fo.models.classifier(None, _mlp)
        settings = {"local_steps": jnp.int32(3)}
        if name == "unequal":
            settings["local_steps"] = jnp.arange(1, NUM_CLIENTS + 1, dtype=jnp.int32)
        if name == "unreliable":
            cohort = fo.cohorts.unreliable(cohort, dropout=0.25, stragglers=0.3, slowest=0.3)
    tag = rng.random(len(next(iter(examples.values()))))
    examples = {name: np.asarray(x) for name, x in clients.examples.items()} | {"tag": tag}
    clients = _with_examples(clients, examples)
    return Problem(_tagged(fo, model), clients, variables, cohort, settings | {"batch_size": 4})


def _mlp(params, x):
    import jax.numpy as jnp

    hidden = jnp.tanh(x @ params["w"] + params["b"][None])
    return hidden @ params["v"] + params["c"][None], hidden


def _with_examples(clients, examples):
    import dataclasses

    return dataclasses.replace(clients, examples=examples)


def _tagged(fo, model):
    """The model, with the examples' own random numbers as a metric."""

    def loss(variables, batch, key):
        tag = batch["tag"]
        value, aux = model.loss(variables, {k: v for k, v in batch.items() if k != "tag"}, key)
        return value, aux._replace(metrics={"minibatches": tag})

    return fo.Model(model.init, loss)


def played(fo: Any, algorithm: Any, problem: Problem, strategy: Any) -> Any:
    """The run of either API: the only place here that knows them apart."""
    import jax

    if hasattr(fo, "Federation"):
        federation = fo.Federation(
            problem.model, problem.clients, cohort=problem.cohort, initial=problem.variables,
            **problem.settings,
        )  # fmt: skip
        state = fo.init_state(algorithm, federation)._replace(key=jax.random.key(SEED))
        return fo.run_rounds(algorithm, federation, state, ROUNDS, strategy=strategy)
    state = fo.init_state(algorithm, problem.variables, NUM_CLIENTS, jax.random.key(SEED))
    return fo.run_rounds(
        algorithm, problem.model, problem.clients, state, ROUNDS, sampler=problem.cohort,
        strategy=strategy, **problem.settings,
    )  # fmt: skip


def numbers_of(run: Any) -> dict[str, np.ndarray]:
    """What is compared of a run."""
    import jax

    state, info = run
    found = {
        "round": state.round,
        "cohort": info.cohort,
        "num_steps": info.num_steps,
        "loss": info.loss,
        "first_loss": info.first_loss,
        "client_loss": info.client_loss,
        "update_norm": info.update_norm,
        "minibatches": info.metrics["minibatches"],
    }
    for part in ("server", "clients", "aggregator"):
        leaves = jax.tree_util.tree_leaves_with_path(getattr(state, part, ()))
        found |= {f"{part}{jax.tree_util.keystr(path)}": leaf for path, leaf in leaves}
    return {name: np.asarray(jax.device_get(x)) for name, x in found.items()}


def work(cases: list[str], output: Path) -> None:
    """In a process of its own: the numbers of some cases, 'algorithm|strategy|problem'."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import fedjax_opt as fo

    fo.use_cpu_devices(2)
    print(f"{Path(fo.__file__).parent}", file=sys.stderr)
    makers = matrix_of(fo) | others_of(fo)
    problems, found = {name: problem(fo, name) for name in PROBLEMS}, {}
    for i, case in enumerate(cases, 1):
        start = time.perf_counter()
        name, strategy_name, problem_name = case.split("|")
        strategy = fo.Strategy(strategy_name, size=2)
        try:
            algorithm = makers[name](0.04)
        except AttributeError as error:  # an algorithm that this checkout does not have
            print(f"{case}: {error}", file=sys.stderr)
            continue
        run = played(fo, algorithm, problems[problem_name], strategy)
        found |= {f"{case}|{key}": value for key, value in numbers_of(run).items()}
        jax.clear_caches()  # the programs of all cases together need more memory maps than Linux grants
        seconds = time.perf_counter() - start
        print(f"{i}/{len(cases)} {case} {seconds:.1f} s", file=sys.stderr, flush=True)
    np.savez(output, **found)


# The parent ------------------------------------------------------------------------------------


def chosen_cases(args: argparse.Namespace) -> list[str]:
    """A Latin square: over the strategies an algorithm meets all problems, and so does a strategy."""
    sys.path.insert(0, str(args.after))
    import fedjax_opt as fo

    matrix, names = matrix_of(fo), [*matrix_of(fo), *others_of(fo)]
    cases = []
    for i, name in enumerate(names):
        for j, strategy in enumerate(STRATEGIES):
            if name not in matrix and j != i % len(STRATEGIES) and not args.all_problems:
                continue
            met = PROBLEMS if args.all_problems else [PROBLEMS[(i // 4 + i + j) % len(PROBLEMS)]]
            if _chosen(args.algorithms, name, names) and _chosen(
                args.strategies, strategy, STRATEGIES
            ):
                cases += [f"{name}|{strategy}|{p}" for p in met if (name, p) not in WITHOUT]
    return cases


def _chosen(text: str, name: str, names: Any) -> bool:
    chosen = [part.strip() for part in text.split(",") if part.strip()]
    unknown = set(chosen) - set(names)
    if unknown:
        sys.exit(f"must be among {', '.join(names)}; got {', '.join(sorted(unknown))}")
    return not chosen or name in chosen


def relative_difference(one: np.ndarray, other: np.ndarray, scale: float) -> float:
    """The largest difference relative to the largest entry; infinite for other shapes or NaNs."""
    if one.shape != other.shape or not np.array_equal(np.isnan(one), np.isnan(other)):
        return float("inf")
    one, other = np.nan_to_num(one), np.nan_to_num(other)
    size = max(np.max(np.abs(one), initial=0.0), SMALL * scale, np.finfo(float).tiny)
    return float(np.max(np.abs(one - other), initial=0.0) / size)


def compare(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> dict[str, float]:
    """The relative difference of each thing that both have; infinite where it must be equal."""
    floats = [x for n, x in before.items() if n[0] in "sc" and np.issubdtype(x.dtype, np.floating)]
    scale = max((float(np.max(np.abs(np.nan_to_num(x)), initial=0.0)) for x in floats), default=0.0)
    found = {}
    for name in before.keys() & after.keys():
        one, other = before[name], after[name]
        if np.issubdtype(one.dtype, np.floating) and np.issubdtype(other.dtype, np.floating):
            state = name.startswith(("server", "clients", "aggregator"))
            found[name] = relative_difference(one, other, scale if state else 0.0)
        else:
            found[name] = 0.0 if np.array_equal(one, other) else float("inf")
    return found


def grouped(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """{case: {name: numbers}} of a worker's file."""
    found: dict[str, dict[str, np.ndarray]] = {}
    with np.load(path) as archive:
        for key in archive.files:
            *case, name = key.split("|", 3)
            found.setdefault("|".join(case), {})[name] = archive[key]
    return found


def started(checkout: Path, cases: list[str], output: Path) -> subprocess.Popen:
    command = [sys.executable, str(Path(__file__).resolve()), "--work", str(output), *cases]
    environment = os.environ | {"PYTHONPATH": str(checkout), "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(command, env=environment, cwd=checkout)


def main() -> int:
    if "--work" in sys.argv:
        work(sys.argv[3:], Path(sys.argv[2]))
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--algorithms", default="", help="names, separated by commas (all)")
    parser.add_argument("--strategies", default="", help="names, separated by commas (all)")
    parser.add_argument(
        "--all-problems", action="store_true", help="each algorithm on each problem"
    )
    parser.add_argument("--tolerance", type=float, default=1e-13)
    parser.add_argument("--jobs", type=int, default=1, help="2: both checkouts at the same time")
    args = parser.parse_args()
    args.before, args.after = args.before.resolve(), args.after.resolve()
    cases = chosen_cases(args)
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / name for name in ("before.npz", "after.npz")]
        running = []
        for checkout, output in zip((args.before, args.after), outputs, strict=True):
            running.append(started(checkout, cases, output))
            if args.jobs == 1 and running[-1].wait():
                return 1
        if any(process.wait() for process in running):
            return 1
        before, after = map(grouped, outputs)
    return report(before, after, args.tolerance)


def report(before: dict, after: dict, tolerance: float) -> int:
    """Prints the largest differences, one row a case; 1 if one of them is above the tolerance."""
    differ, alone = [], set()
    print(f"{'algorithm':20} {'strategy':9} {'problem':11} {'largest':>8}  where")
    for case in sorted(before.keys() ^ after.keys()):
        print(f"{case}: in {'the first' if case in before else 'the second'} only")
    for case in [case for case in before if case in after]:
        found = compare(before[case], after[case])
        alone |= {name for name in before[case].keys() ^ after[case].keys()}
        where = max(found, key=lambda name: found[name])
        limits = {name: 0.0 if name in EXACT else tolerance for name in found}
        wrong = sorted(name for name in found if not found[name] <= limits[name])
        name, strategy, problem_name = case.split("|")
        mark = f"  DIFFERS: {', '.join(wrong)}" if wrong else ""
        line = f"{name:20} {strategy:9} {problem_name:11} {found[where]:8.1e}  {where}{mark}"
        print(line)
        differ += [case] if wrong else []
    if alone:
        print(f"in one of them only: {', '.join(sorted(alone))}")
    print(f"{len(before)} cases, {len(differ)} differ by more than {tolerance:g}")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
