"""Results on disk: one directory for a run, right at any moment at which the run may be killed.

config.toml       what was run
about.json        status, seconds, seeds, versions, machine, facts of the federation
history.jsonl     one line for each trial and evaluated round
models/NAME.npz   final models, as `fo.save_model` writes them, and what each is in NAME.json
states/           of each run, to go on from there: after a kill, or for more rounds
"""

import contextlib
import datetime
import json
import math
import os
import pathlib
import platform
import re
import time
import tomllib
import urllib.parse
import zlib
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_opt.core import Variables, checks
from fedjax_opt.execution import distributed
from fedjax_opt.storage import durable, load_model, save_model
from fedjax_opt.version import __version__

_CONFIG, _ABOUT, _HISTORY = "config.toml", "about.json", "history.jsonl"
_STATES, _MODELS = "states", "models"
_FORMAT, _VERSION = "fedjax_opt run", 1
# Keys that say how curves are judged, and change none.
_OF_THE_VERDICT = ("metric", "criterion", "target", "smoothing", "baseline")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
# What every record has.
_KINDS = {"label": str, "hyperparameters": dict, "seed": int, "round": int}


class Results(NamedTuple):
    """What a run directory holds.

    Attributes:
      config: what was run, as the text of a TOML file.
      about: `status` ('finished', 'interrupted', 'failed', or 'running' if it still is, or was killed),
        `seconds`, `started`, `seeds`, `versions`, `machine` and `facts`.
      records: mappings with `label`, `hyperparameters`, `seed`, `round` and scalars by name.
      labels: whose final models it holds; see `read_model`.
    """

    config: str
    about: dict[str, Any]
    records: list[dict[str, Any]]
    labels: list[str]


def read(path: str | os.PathLike[str]) -> Results:
    """Reads a run directory, and checks all of it but the models.

    Where several records are of one trial and round (a continued run repeats what came after its state
    was written), the last one is given. Of a run that was killed, an incomplete last line is left out.

    Args:
      path: the directory.

    Returns:
      The `Results`.

    Raises:
      ValueError: if it holds no run, or a file is damaged; the message names the file.

    Example:
      >>> import pathlib, tempfile
      >>> from fedjax_opt.experiments.rundir import RunDirectory, read
      >>> home = pathlib.Path(tempfile.mkdtemp()) / "run"
      >>> record = {"label": "fedavg", "hyperparameters": {}, "seed": 0, "round": 10, "loss": 0.5}
      >>> with RunDirectory(home, config="rounds = 10") as run:
      ...     run.append([record])
      >>> found = read(home)
      >>> found.about["status"], found.records[0]["loss"]
      ('finished', 0.5)
    """
    folder = pathlib.Path(path)
    if not (folder / _ABOUT).exists():
        inside = sorted(str(about.parent) for about in folder.glob(f"*/{_ABOUT}"))
        hint = f" It holds others that are runs: {', '.join(inside)}." if inside else ""
        raise ValueError(f"{folder} holds no run: {_ABOUT} is missing.{hint}")
    about = durable.read_json(folder / _ABOUT)
    if (about.get("format"), about.get("version")) != (_FORMAT, _VERSION):
        raise ValueError(
            f"{folder / _ABOUT} must describe a {_FORMAT!r} of version {_VERSION}, got"
            f" {about.get('format')!r} of version {about.get('version')!r}."
        )
    config = durable.read(folder / _CONFIG)
    # A run that is extended has another one, which a kill may have left unwritten.
    if zlib.crc32(config) not in (about["config_crc32"], about.get("next_config_crc32")):
        raise ValueError(f"{folder / _CONFIG} is damaged: it is not what the run was begun with.")
    lines, torn = durable.read_lines(folder / _HISTORY)
    if about["status"] != "running" and (torn or len(lines) != about["records"]):
        raise ValueError(
            f"{folder / _HISTORY} is damaged: it must hold the {about['records']} lines that were"
            f" written, got {len(lines)}{' and a part of one' if torn else ''}."
        )
    records = {}
    for number, line in enumerate(lines, 1):
        record = _read_record(line, f"Line {number} of {folder / _HISTORY}")
        records[json.dumps([record[name] for name in _KINDS], sort_keys=True)] = record
    names = sorted(file.stem for file in (folder / _MODELS).glob("*.npz"))
    labels = [urllib.parse.unquote(name) for name in names]
    return Results(config.decode(), about, list(records.values()), labels)


def read_model(
    path: str | os.PathLike[str], label: str, like: Variables | None = None
) -> Variables:
    """Reads the final model of a label; `fo.save_model` writes it elsewhere.

    Args:
      path: the run directory.
      label: whose model, with the point of a grid and the seed, as in 'fedavg (mu=0.1), seed 0'.
      like: variables of the same model, as for `fo.load_model`; None for nested dicts.

    Returns:
      The variables.

    Raises:
      ValueError: if there is none, if it is damaged, or if it is of another model.

    Example:
      >>> import pathlib, tempfile
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> from fedjax_opt.experiments.rundir import RunDirectory, read_model
      >>> home = pathlib.Path(tempfile.mkdtemp()) / "run"
      >>> variables = fo.Variables({"w": jnp.ones(3)})
      >>> with RunDirectory(home, config="rounds = 10") as run:
      ...     run.save_model("fedavg", variables)
      >>> read_model(home, "fedavg").params["w"].tolist()
      [1.0, 1.0, 1.0]
    """
    return load_model(_model_file(pathlib.Path(path), label), like)


def _model_file(folder: pathlib.Path, label: str) -> pathlib.Path:
    return folder / _MODELS / f"{urllib.parse.quote(label, safe=' ()=,+@')}.npz"


class RunDirectory:
    """A directory that a run writes its results to.

    As a context it notes how the run ended: 'finished', 'interrupted' by Ctrl-C, or 'failed'. Killed, it
    stays 'running', with all that was written.

    Args:
      path: where; made if missing. It must be empty, or hold the same run, made with the same versions,
        which is then continued; or one that this one extends by seeds, algorithms, points or rounds.
      config: what is run, as the text of a TOML file.
      about: what else `about.json` says.
      trials: what each trial is computed from, by its identity. One of others is not continued.

    Attributes:
      path: the directory.
      records: the records that it held when it was opened.
      states: where the states of trials are kept; see `States`.

    Example:
      >>> import pathlib, tempfile
      >>> from fedjax_opt.experiments.rundir import RunDirectory
      >>> home = pathlib.Path(tempfile.mkdtemp()) / "run"
      >>> record = {"label": "fedavg", "hyperparameters": {}, "seed": 0, "round": 10, "loss": 0.5}
      >>> with RunDirectory(home, config="rounds = 10") as run:
      ...     run.append([record])
      >>> with RunDirectory(home, config="rounds = 10") as run:
      ...     len(run.records)
      1
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: str,
        about: Mapping[str, Any] = MappingProxyType({}),
        trials: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.path = pathlib.Path(path)
        self.records: list[dict[str, Any]] = []
        self.states = self.path / _STATES
        self._opened = time.perf_counter()
        with durable.named(self.path, "cannot be written"):
            self.path.mkdir(parents=True, exist_ok=True)
        if (self.path / _ABOUT).exists():
            found = read(self.path)
            _check_sources(self.path, found.about.get("sources", {}), about.get("sources", {}))
            _check_same(self.path, found, config, trials)
            self.records, self._about = found.records, found.about
            known = self._about.get("trials", {})
            self._about |= {**about, "trials": {**known, **trials}}
            if tomllib.loads(found.config) == tomllib.loads(config):
                config = found.config  # whose comments may differ
        else:
            _check_free(self.path, config)
            self._about = {**describe(), **about, "trials": dict(trials), "seconds": 0.0}
            self._about["config_crc32"] = zlib.crc32(config.encode())
        self._lines = durable.Lines(self.path / _HISTORY)
        try:
            self._begin(config)
        except BaseException:
            self._lines.close()
            raise

    def _begin(self, config: str) -> None:
        """Writes what is run, in an order in which the directory always holds a run."""
        crc = zlib.crc32(config.encode())
        if (self.path / _ABOUT).exists() and crc != self._about["config_crc32"]:
            self._note("running", next_config_crc32=crc)
        durable.replace(self.path / _CONFIG, config.encode())
        self._about["config_crc32"] = crc
        self._note("running")  # the last to be written: from now on the directory holds a run

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Adds records; they are on the disk when it returns.

        Args:
          records: mappings with `label`, `hyperparameters`, `seed`, `round` and scalars by name, such as
            `Progress.records`. A number that is not finite is written as null, and read as NaN.
        """
        self._lines.append([durable.sealed(_plain(record)) for record in records])

    def save_model(self, label: str, variables: Variables) -> None:
        """Writes a final model by `fo.save_model`: arrays by paths such as 'params/layer/kernel'.

        Args:
          label: whose it is; an earlier one of this label is replaced.
          variables: the model.
        """
        save_model(variables, _model_file(self.path, label), {"label": label})

    def close(self, status: str = "finished") -> None:
        """Notes how the run ended, and lets go of the directory.

        Args:
          status: 'finished', 'interrupted' or 'failed'.
        """
        checks.choice("status", status, ("finished", "interrupted", "failed"))
        with contextlib.closing(self._lines):
            self._note(status)

    def _note(self, status: str, **more: Any) -> None:
        seconds = self._about["seconds"] + time.perf_counter() - self._opened
        written = len(durable.read_lines(self.path / _HISTORY)[0])
        about = self._about | {"status": status, "seconds": seconds, "records": written}
        about = {k: v for k, v in about.items() if k != "next_config_crc32"} | more
        durable.write_json(self.path / _ABOUT, about)

    def __enter__(self) -> "RunDirectory":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        ended = "failed" if kind else "finished"
        self.close("interrupted" if kind and issubclass(kind, KeyboardInterrupt) else ended)


class Memory:
    """What a directory holds, where there is none, or another process writes to it.

    Args:
      records: those of the directory.
    """

    states = None

    def __init__(self, records: Iterable[dict[str, Any]] = ()) -> None:
        self.records, self.models = list(records), {}

    def append(self, records: Iterable[dict[str, Any]]) -> None:
        """Adds records."""
        self.records += records

    def save_model(self, label: str, variables: Variables) -> None:
        """Keeps a final model."""
        self.models[label] = variables

    def __enter__(self) -> "Memory":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is to be closed."""


def opened(
    path: str | os.PathLike[str] | None,
    config: str,
    about: Mapping[str, Any],
    trials: Mapping[str, str],
) -> RunDirectory | Memory:
    """The run's directory in the first process; in the others, or without one, what is known of it.

    A directory that is refused is refused in all processes, else the others would wait for the first.
    """
    if path is None:
        return Memory()
    directory, found = None, {"error": "", "records": []}
    if distributed.is_first():
        try:
            directory = RunDirectory(path, config, about, trials)
            found["records"] = directory.records
        except ValueError as error:
            if not distributed.is_joined():
                raise
            found["error"] = str(error)
    found = distributed.from_first(found)
    if found["error"]:
        raise ValueError(found["error"])
    return directory or Memory(found["records"])


def _extends(key: str, old: Any, new: Any) -> bool:
    """Whether a value of the configuration holds all that another one held."""
    if key in _OF_THE_VERDICT:
        return True
    if key in ("rounds", "samples"):
        return old is None or (new is not None and new >= old)
    if key in ("seeds", "algorithms") and isinstance(new, list):
        return all(one in new for one in old or ())
    if key == "algorithms":
        return all(new.get(label) == text for label, text in (old or {}).items())
    if key == "grid":
        new = new or {}
        return all(
            name in new and _within(values, new[name]) for name, values in (old or {}).items()
        )
    return old == new


def _within(old: Any, new: Any) -> bool:
    if isinstance(old, list) and isinstance(new, list):
        return all(value in new for value in old)
    return old == new


def _check_sources(path: pathlib.Path, there: Mapping[str, str], here: Mapping[str, str]) -> None:
    """Refuses to go on with other data, or other code of one's own."""
    for name in sorted(there.keys() & here.keys()):
        if there[name] != here[name]:
            raise ValueError(
                f"{path} holds another run: {name} was changed since. Its SHA-256 is"
                f" {there[name]:.12}... there and {here[name]:.12}... here. Choose another directory, or"
                " delete that one."
            )


def _check_same(path: pathlib.Path, found: Results, config: str, trials: Mapping[str, str]) -> None:
    """Refuses to continue another run, or this one with other versions."""
    there, here = tomllib.loads(found.config), tomllib.loads(config)
    for key in there | here:
        if not _extends(key, there.get(key), here.get(key)):
            old, new = (repr(held[key]) if key in held else "left out" for held in (there, here))
            raise ValueError(
                f"{path} holds another run: {key} is {old} there and {new} here. Choose another"
                " directory, or delete that one."
            )
    for trial, text in found.about.get("trials", {}).items():
        if trials and trials.get(trial, text) != text:
            raise ValueError(
                f"{path} holds another run: {trial} has other data, numbers or functions there."
                " Choose another directory, or delete that one."
            )
    then, now = found.about["versions"], _versions()
    changed = [
        f"{name} {then.get(name)}, not {now[name]}" for name in now if then.get(name) != now[name]
    ]
    if changed:
        raise ValueError(
            f"{path} holds a run that was begun with {'; '.join(changed)}, and is not continued with"
            " others: its numbers may differ. Choose another directory, or delete that one."
        )


def _check_free(path: pathlib.Path, config: str) -> None:
    """Refuses a directory that holds anything but what a kill may leave of a run just begun."""
    there = {file.name.removesuffix(durable.PARTIAL) for file in path.iterdir()}
    foreign = there - {_CONFIG, _ABOUT, _HISTORY}
    begun = {_CONFIG: config.encode(), _HISTORY: b""}
    foreign |= {
        name
        for name, content in begun.items()
        if (path / name).exists() and (path / name).read_bytes() != content
    }
    if foreign:
        raise ValueError(
            f"{path} must be empty, or hold a run to be continued, but it holds other files,"
            f" {min(foreign)} among them. Choose another directory."
        )


def describe() -> dict[str, Any]:
    """When, with what and where a run is made."""
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": _versions(),
        "machine": {
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "backend": jax.default_backend(),
            "devices": jax.local_device_count(),
            "device": jax.local_devices()[0].device_kind,
        },
    }


def _versions() -> dict[str, str]:
    found = {name: version(name) for name in ("jax", "jaxlib", "numpy", "optax")}
    return {"python": platform.python_version(), **found, "fedjax_opt": __version__}


def _plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    value = value.item() if isinstance(value, (np.generic, np.ndarray, jax.Array)) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read_record(line: bytes, where: str) -> dict[str, Any]:
    record = durable.unsealed(line, where)
    for name, kind in _KINDS.items():
        if not isinstance(record.get(name), kind):
            raise ValueError(f"{where} must have a {name} of type {kind.__name__}, got {record}.")
    return {name: math.nan if value is None else value for name, value in record.items()}


def to_toml(held: Mapping[str, Any]) -> str:
    """Values by key as TOML: tables after all else, and what is None or an empty table left out."""
    tables = {key: value for key, value in held.items() if isinstance(value, Mapping)}
    lines = [
        f"{key} = {toml_value(value)}"
        for key, value in held.items()
        if value is not None and key not in tables
    ]
    for key, table in tables.items():
        if table:
            lines += ["", f"[{key}]", *toml_lines(table)]
    return "\n".join([*lines, ""])


def toml_lines(table: Mapping[str, Any]) -> list[str]:
    """The lines of a table."""
    return [
        f"{key if _BARE.fullmatch(key) else toml_value(key)} = {toml_value(value)}"
        for key, value in table.items()
    ]


def toml_value(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # TOML has JSON's escapes; of the characters that it wants escaped JSON leaves one as it is.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if not isinstance(value, (list, tuple)):
        return repr(value.item() if isinstance(value, np.generic) else value)
    if any(isinstance(one, str) for one in value):
        return "".join(["[\n", *(f"    {toml_value(one)},\n" for one in value), "]"])
    return f"[{', '.join(map(toml_value, value))}]"
