"""What a comparison gave: tables, plots, a page, from its records alone."""

import os
import pathlib
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_opt.core import Variables
from fedjax_opt.core.tables import duration, number, table_lines
from fedjax_opt.experiments import results, rundir
from fedjax_opt.experiments.report import About, draw, panels, save_plots, write_report
from fedjax_opt.experiments.results import Curves, Measured, Rule
from fedjax_opt.experiments.specs import unknown
from fedjax_opt.experiments.trials import model_name
from fedjax_opt.storage import durable, save_model

_SHOWN = 20  # points of a grid in a table; all are in the records


class Comparison:
    """Algorithms on a federation, at the points of their grids, with several seeds.

    Args:
      config: what was run, as TOML.
      about: `status` ('finished', 'interrupted', 'failed', or 'running' if it still is, or was killed),
        `seconds`, `seeds`, `versions`, `machine` and `facts`.
      records: mappings with `label`, `hyperparameters`, `seed`, `round` and scalars by name.
      models: the final models by name, of a comparison that has no directory.
      path: its directory.
      labels: whose final models the directory holds; see `experiments.read_model`.

    Example:
      >>> import fedjax_opt as fo
      >>> model, clients, optimum = fo.data.quadratics(num_clients=8, dimension=3)
      >>> federation = fo.Federation(
      ...     model, clients, cohort=4, local_steps=5, batch_size=1, test=clients.examples
      ... )
      >>> found = fo.compare(
      ...     {"FedAvg": fo.fedavg(fo.optimizers.sgd(0.1))}, federation, 20, progress=False
      ... )
      >>> found.rule.metric, found.to_pandas()["loss"].size
      ('loss', 6)
    """

    def __init__(
        self,
        config: str,
        about: Mapping[str, Any],
        records: Sequence[Mapping[str, Any]],
        models: Mapping[str, Variables | None] | None = None,
        path: pathlib.Path | None = None,
        labels: Sequence[str] = (),
    ) -> None:
        self.config, self.about, self.path = config, dict(about), path
        self.records = [dict(record) for record in records]
        self.models, self.labels = dict(models or {}), list(labels)
        self.options = tomllib.loads(config)
        self.curves = results.curves(self._on_the_grid())

    def _on_the_grid(self) -> list[dict[str, Any]]:
        """Without the last evaluations of runs that went on for more rounds afterwards."""
        every = self.options.get("evaluate_every", 1)
        last = self.about.get("facts", {}).get("rounds", 0)
        return [
            record
            for record in self.records
            if record["round"] % every == 0 or record["round"] >= last or "diverged" in record
        ]

    @property
    def rule(self) -> Rule:
        """By what curves are judged."""
        names = ("metric", "criterion", "target", "smoothing")
        given = {name: self.options[name] for name in names if name in self.options}
        return results.rule(self.curves, **given)

    def best(self, criterion: str | None = None) -> list[Curves]:
        """For each algorithm the point that is best.

        Args:
          criterion: one of `experiments.results.CRITERIA`; None for that of the comparison.
        """
        by = self.rule
        return results.best(
            self.curves, by if criterion is None else by._replace(criterion=criterion)
        )

    def measured(self, baseline: str | None = None) -> Measured:
        """The best point of each algorithm beside a baseline.

        Args:
          baseline: a label; None for that of the comparison.
        """
        return results.measure(self.best(), self.rule, baseline or self.options.get("baseline"))

    def model(self, algorithm: str | None = None, seed: int | None = None) -> Variables:
        """A final model, such as `fo.save_model` writes and `Federation(initial=...)` starts from.

        Args:
          algorithm: whose, at its best point; None for that of the best algorithm.
          seed: of which run; None for the best.
        """
        return self._model(*self._run(algorithm, seed))

    def export(
        self,
        path: str | os.PathLike[str],
        algorithm: str | None = None,
        seed: int | None = None,
    ) -> pathlib.Path:
        """Writes a final model by `fo.save_model`, and beside it what run it is from.

        Args:
          path: where; its ending is the form.
          algorithm: whose, at its best point; None for that of the best algorithm.
          seed: of which run; None for the best.
        """
        one, seed = self._run(algorithm, seed)
        about = {"algorithm": one.label, "hyperparameters": one.hyperparameters, "seed": seed}
        values = one.values(self.rule.metric)[one.seeds.index(seed)]
        about |= {"round": int(one.rounds[-1]), self.rule.metric: float(values[-1])}
        return save_model(self._model(one, seed), path, about)

    def _run(self, algorithm: str | None, seed: int | None) -> tuple[Curves, int]:
        found = self.best()
        labels = [one.label for one in found]
        if algorithm is not None and algorithm not in labels:
            raise unknown("algorithm", algorithm, labels, f"There are {', '.join(labels)}.")
        found = [one for one in found if algorithm in (None, one.label) and len(one.rounds)]
        if not found:
            raise ValueError(f"{algorithm or self.path} has no evaluation yet, by which to choose.")
        one, best = results.best_run(found, self.rule)
        if seed is not None and seed not in one.seeds:
            known = ", ".join(map(str, one.seeds))
            raise ValueError(f"seed must be one of {known}, which {one.label} ran, got {seed}.")
        chosen = best if seed is None else seed
        if chosen in one.diverged:
            raise ValueError(
                f"{one.label} with seed {chosen} diverged in round {one.diverged[chosen]}: its model is"
                " of no use. Choose another algorithm or seed."
            )
        return one, chosen

    def _model(self, one: Curves, seed: int) -> Variables:
        name = model_name(one.label, one.hyperparameters, seed)
        if self.path is None:
            found = self.models.get(name)
        else:
            found = rundir.read_model(self.path, name) if name in self.labels else None
        if found is None:
            raise ValueError(f"There is no model of {name}: that run has not ended.")
        return found

    def table(self) -> str:
        """The results as text: each algorithm at its best point, and of one alone all points."""
        found, by = self.best(), self.rule
        parts = []
        if len(found) == 1 and len(self.curves) > 1:
            parts.append(_points(self.curves, found, by))
        measured = self.measured()
        parts.append("\n".join(table_lines(*_lines(measured))))
        if any(row.hyperparameters for row in measured.rows):
            for row in measured.rows:
                chosen = ", ".join(f"{k}={number(v)}" for k, v in row.hyperparameters.items())
                parts.append(f"{row.label}: {chosen or 'as given'}")
        return "\n".join([*parts, *self.notes()])

    def __str__(self) -> str:
        return self.table()

    def notes(self) -> list[str]:
        """What a reader should know: where points were chosen, and whether at an end of a grid."""
        grids, found = self.about.get("grids", {}), []
        for one in self.best():
            for name, values in grids.get(one.label, {}).items():
                chosen = one.hyperparameters.get(name)
                if chosen is None or len(values) < 3 or min(values) < chosen < max(values):
                    continue
                low = chosen == min(values)
                ratio = sorted(values)[1] / min(values) if min(values) > 0 else 2.0
                further = chosen / ratio if low else chosen * ratio
                found.append(
                    f"{one.label}: {name}={chosen:g} is the {'smallest' if low else 'largest'} that was"
                    f" tried, so that a wider grid may do better: --grid"
                    f" '{one.label}:{name}={','.join(f'{v:g}' for v in sorted([*values, further]))}'."
                )
        points = {one.label: 0 for one in self.curves}
        for one in self.curves:
            points[one.label] += 1
        if max(points.values(), default=0) > 1 and not self.about.get("validated", True):
            found.append(
                "Points were chosen on the test set that is reported, so that the best are somewhat"
                " optimistic: hold validation examples out to choose by them."
            )
        return found

    def to_pandas(self) -> Any:
        """All records as a `pandas.DataFrame`, with a column for each hyperparameter."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("A DataFrame needs pandas: pip install pandas.") from error
        rows = [
            {"label": r["label"], **r["hyperparameters"]}
            | {k: v for k, v in r.items() if k not in ("label", "hyperparameters")}
            for r in self.records
        ]
        return pandas.DataFrame(rows)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """The metric over rounds, and over the bytes exchanged, as a `matplotlib.figure.Figure`.

        Args:
          path: a file to write it to, whose ending is the format; a folder gets every plot, as PNG and
            PDF. None to write nothing.
        """
        measured = self.measured()
        if path is not None and not pathlib.Path(path).suffix:
            save_plots(path, measured)
            return None
        drawn = draw(measured, *panels(measured)[0][:2])
        if path is not None:
            drawn.savefig(path, dpi=200)
        return drawn

    def report(
        self,
        path: str | os.PathLike[str] | None = None,
        title: str | None = None,
        baseline: str | None = None,
    ) -> pathlib.Path:
        """Writes one self-contained page, and `results.csv` beside it.

        Args:
          path: the page; None for `report.html` in the directory of the comparison.
          title: its title.
          baseline: the label that others are compared with; None for that of the comparison.
        """
        if path is None and self.path is None:
            raise ValueError("path must be given, as this comparison has no directory.")
        page = (
            pathlib.Path(path)
            if path is not None
            else pathlib.Path(self.path or ".") / "report.html"
        )
        return report([self], page, title, baseline)

    def save(self, path: str | os.PathLike[str]) -> pathlib.Path:
        """Writes the records into a directory that `experiments.read` and `fedjax-opt report` read.

        Args:
          path: the directory, new or empty.
        """
        with rundir.RunDirectory(path, self.config, self.about) as directory:
            if directory.records:
                raise ValueError(f"{path} holds a run already. Choose another directory.")
            directory.append(self.records)
            for name, variables in self.models.items():
                if variables is not None:
                    directory.save_model(name, variables)
        return pathlib.Path(path)


def read(path: str | os.PathLike[str]) -> Comparison:
    """Reads a run directory: of `fo.compare`, of `Comparison.save` or of the command line.

    Args:
      path: the directory.

    Returns:
      The `Comparison`. A directory that is damaged is refused, and the file named.

    Example:
      >>> import pathlib, tempfile
      >>> import fedjax_opt as fo
      >>> model, clients, optimum = fo.data.quadratics(num_clients=8, dimension=3)
      >>> federation = fo.Federation(
      ...     model, clients, cohort=4, local_steps=5, batch_size=1, test=clients.examples
      ... )
      >>> home, algorithm = pathlib.Path(tempfile.mkdtemp()), fo.fedavg(fo.optimizers.sgd(0.1))
      >>> found = fo.compare(
      ...     {"FedAvg": algorithm}, federation, 10, output=home / "run", progress=False
      ... )
      >>> len(fo.experiments.read(home / "run").records)
      3
    """
    held = rundir.read(path)
    return Comparison(
        held.config, held.about, held.records, path=pathlib.Path(path), labels=held.labels
    )


def report(
    runs: Sequence[Comparison],
    page: pathlib.Path,
    title: str | None = None,
    baseline: str | None = None,
    plots: str | os.PathLike[str] | None = None,
    notes: Sequence[str] = (),
    commands: Sequence[str] = (),
    beside: Sequence[Sequence[str]] = (),
) -> pathlib.Path:
    """Writes a page about one or several comparisons of one task; see `About` for what else it says."""
    tasks = [run.options.get("task", run.options.get("federation", "")) for run in runs]
    if len(set(tasks)) > 1:
        raise ValueError(
            f"The runs of a report must be of one task, got {', '.join(sorted(set(tasks)))}."
        )
    rules = [run.rule for run in runs]
    if len({one._replace(criterion="best") for one in rules}) > 1:
        raise ValueError(
            "The runs of a report must have one metric, target and smoothing, got"
            f" {'; '.join(dict.fromkeys(str(tuple(one)) for one in rules))}."
        )
    curves: list[Curves] = []
    owners: list[int] = []
    for place, run in enumerate(runs):
        for one in run.best():
            if one.label in {other.label for other in curves}:
                one = one._replace(
                    label=f"{one.label} ({run.path.name if run.path else place + 1})"
                )
            curves.append(one)
            owners.append(place)
    if not any(len(one.rounds) for one in curves):
        where = runs[0].path or "The comparison"
        raise ValueError(f"{where} holds no evaluation yet: there is nothing to report on.")
    labels = [one.label for one in curves]
    if baseline is not None and baseline not in labels:
        raise unknown("--baseline", baseline, labels, f"There are {', '.join(labels)}.")
    baseline = baseline or next(
        (run.options["baseline"] for run in runs if run.options.get("baseline") in labels), None
    )
    same, differing = results.settings_differ([_settings(run) for run in runs])
    machine = runs[0].about.get("machine", {})
    made = [run.about["command"] for run in runs if run.about.get("command")]
    count = len(labels)
    name = runs[0].about.get("title", str(tasks[0]).partition("(")[0])
    about = About(
        title or f"{name}: {count} algorithm{'s' * (count > 1)}",
        task=runs[0].about.get("said", ""),
        facts=same,
        commands=[*commands] or made,
        versions=runs[0].about.get("versions", {})
        | {"device": f"{machine.get('devices')} x {machine.get('device')}"},
        notes=[*notes, *_notes(runs)],
        baseline=baseline,
        beside=beside,
        differing={name: [values[i] for i in owners] for name, values in differing.items()},
    )
    with durable.named(page, "cannot be written"):
        if plots is not None:
            save_plots(plots, results.measure(curves, rules[0], baseline))
        return write_report(page, about, curves, rules[0])


def _notes(runs: Sequence[Comparison]) -> list[str]:
    notes = [note for run in runs for note in run.notes()]
    notes += [
        f"{run.path.name if run.path else 'A run'} is {run.about['status']}: what it has done so far"
        " is shown."
        for run in runs
        if run.about.get("status") != "finished"
    ]
    notes.append(
        "Bytes, operations and the simulated time are derived from the algorithms: see"
        " fedjax_opt.experiments.pricing."
    )
    links = {tuple(run.about["link"]) for run in runs if "link" in run.about}
    if len(links) == 1:
        notes[-1] += " The simulated link has {:g} Mbit/s down and {:g} Mbit/s up.".format(
            *links.pop()
        )
    return list(dict.fromkeys(notes))


def _settings(run: Comparison) -> dict[str, Any]:
    """What holds for all algorithms of a run, by name."""
    names = ("task", "controller", "weighting", "batching")
    held = {name: run.options[name] for name in names if name in run.options}
    return held | {"seeds": len(run.about.get("seeds", ()))} | run.about.get("facts", {})


def _points(found: Sequence[Curves], best: Sequence[Curves], by: Rule) -> str:
    """All points of one algorithm, the best first."""
    chosen_by = by.choosing
    names = list(dict.fromkeys(name for one in found for name in one.hyperparameters))
    scores = [results.interval(results.score(one, chosen_by)) for one in found]
    sign = -1 if by.maximise and by.criterion != "rounds_to_target" else 1
    order = np.argsort(
        [np.nan_to_num(sign * one.mean, nan=np.inf) for one in scores], kind="stable"
    )
    rows = []
    for place in order[:_SHOWN]:
        one, (mean, half) = found[place], scores[place]
        rows.append(
            [
                *(number(one.hyperparameters.get(name, "")) for name in names),
                "diverged" if np.isnan(mean) else f"{mean:.4g}",
                "" if np.isnan(half) or len(one.seeds) < 3 else f"{half:.4g}",
                str(len(one.seeds)) + (" *" if any(one is other for other in best) else ""),
            ]
        )
    heading = f"{by.criterion.replace('_', ' ')} {chosen_by.metric}"
    lines = table_lines([*names, heading, "±", "seeds"], rows)
    if len(found) > _SHOWN:
        lines.append(f"... and {len(found) - _SHOWN} more in the records.")
    lines.append("*: the best. ±: half of the 95% interval over three seeds or more.\n")
    return "\n".join(lines)


def _lines(measured: Measured) -> tuple[list[str], list[list[str]]]:
    """The head and the lines of a table of algorithms: how good, and at what cost."""
    by = measured.by
    unit = "%" if by.percent else ""
    header = [
        "algorithm",
        f"last {by.metric}",
        "best",
        "MB up",
        "MB down",
        "GFLOP",
        "simulated time",
    ]
    if by.target is not None:
        header.insert(3, f"rounds to {by.text(by.target, 0)}{unit}")
    rows = []
    for row in measured.rows:
        if not row.at_best:
            rows.append([row.label, "diverged", *[""] * (len(header) - 2)])
            continue
        last = results.interval([values[np.isfinite(values)][-1] for values in row.values])
        half = f" ± {by.text(last.half_width)}" if len(row.values) > 2 else ""
        line = [row.label, f"{by.text(last.mean)}{unit}{half}", f"{by.text(row.best)}{unit}"]
        if by.target is not None:
            line.append(str(int(row.to_match["rounds"])) if row.to_match else "not reached")
        spent = {cost: column[-1] for cost, column in row.spent.items()}
        for cost, size in (("bytes_up", 1e6), ("bytes_down", 1e6), ("flops", 1e9)):
            line.append(f"{spent[cost] / size:.1f}" if cost in spent else "")
        rows.append([*line, duration(spent["seconds"]) if "seconds" in spent else ""])
    return header, rows
