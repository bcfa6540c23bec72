"""What a checkpoint says about the run that wrote it, and how a run finds out that it is another one."""

import datetime
import platform
import warnings
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax
import numpy as np

from fedjax_opt.core.federation import Epochs
from fedjax_opt.core.state import FederatedState
from fedjax_opt.engine.preparation import Prepared
from fedjax_opt.training.identity import digest, identify, of_array

# What a run may differ in from the checkpoint that it resumes from, if it is asked for.
CHANGES = ("hyperparameters", "code", "data", "versions")
# What a run may never differ in, by the part of a checkpoint that says so.
_STRICT = {
    "leaves": "another model, algorithm or population",
    "seed": "a run with another seed",
    "functions": "another model, algorithm or run",
    "recorded": "a run whose history holds other things",
}
_COMPARED = ("fedjax_opt", "jax", "jaxlib", "numpy", "optax")
_ROWS = 64  # of the examples, that are looked at to recognise them
_LISTED = 5


def versions() -> dict[str, str]:
    """The versions of everything that the numbers of a run, or its files, may depend on."""
    found = {"python": platform.python_version()}
    for name in (*_COMPARED, "orbax-checkpoint"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found


def circumstances() -> dict[str, Any]:
    """When and where a checkpoint is written: for people to read, never compared."""
    return {
        "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {
            "system": platform.platform(),
            "backend": jax.default_backend(),
            "devices": jax.device_count(),
            "device": jax.devices()[0].device_kind,
        },
    }


def of_run(
    prepared: Prepared,
    state: FederatedState,
    algorithm: Any,
    rollback: Any = None,
    **recorded: object,
) -> dict[str, dict[str, str]]:
    """What makes a run the one that it is, apart from its state.

    How many rounds it has, how they are cut into chunks and how clients are spread over devices change
    no number, and are left out.

    Args:
      prepared: what its program is called with.
      state: the state that it starts from; of it, the key.
      algorithm: the algorithm of the first round.
      rollback: the rules by which it may go back, if any.
      recorded: what else decides which columns the history has.

    Returns:
      By name: `functions`, `code`, `hyperparameters`, `data`, `recorded` and `seed`, texts by path.
    """
    federation, by_rate = prepared.federation, prepared.algorithm
    rules = {"guard": federation.guard, "rollback": rollback}
    rules = {name: rule for name, rule in rules.items() if rule is not None}
    steps, rate = prepared.controls
    epochs = isinstance(federation.local_steps, Epochs)
    found = identify(
        algorithm=algorithm,
        model=federation.model,
        cohort=federation.cohort,
        local_epochs=steps if epochs else None,
        local_steps=None if epochs else steps,
        learning_rate=rate,
        batch_size=federation.batch_size,
        batching=federation.batching,
        weighting=federation.weighting,
        **({} if by_rate is algorithm else {"algorithm_by_rate": by_rate}),
        **rules,
    )
    columns = {"diagnostics": str(sorted(prepared.diagnostics))}
    columns |= {name: str(value) for name, value in recorded.items()}
    clients: Any = federation.clients
    return {
        "functions": found.functions,
        "code": found.code,
        "hyperparameters": found.values,
        "data": _examples("data", clients.examples)
        | {"data.sizes": of_array(np.asarray(clients.sizes))}
        | _examples("validation", federation.validation),
        "recorded": columns,
        "seed": {"key": of_array(state.key)},
    }


def _examples(name: str, examples: Any) -> dict[str, str]:
    """Examples by their shapes and a checksum of some of them: all may be more than memory holds."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(examples):
        shape = np.shape(leaf)
        if shape:
            rows = np.unique(np.linspace(0, max(shape[0] - 1, 0), _ROWS).astype(np.int64))
            leaf = leaf[rows] if shape[0] else leaf
        array = np.ascontiguousarray(leaf)
        found[name + jax.tree_util.keystr(path)] = (
            f"{array.dtype}{list(shape)} with checksum {digest(array.tobytes())}"
        )
    return found


def differences(there: dict[str, Any], here: dict[str, Any]) -> tuple[str, dict[str, list[str]]]:
    """What a checkpoint and a run that is to be resumed from it differ in.

    Args:
      there: what the checkpoint says about the run that wrote it.
      here: the same of this run; a part that it does not have is not compared.

    Returns:
      A sentence about what may never differ, empty if nothing of that does; and by the name of a part
      that may, what differs in it.
    """
    for part, what in _STRICT.items():
        if part in here and (found := _unlike(there.get(part, {}), here[part])):
            return f"is of {what}: {listed(found)}", {}
    changed = {}
    then, now = there.get("versions", {}), here["versions"]
    same_python = _minor(then.get("python")) == _minor(now["python"])
    compared = {name: now[name] for name in _COMPARED}
    changed["versions"] = _unlike({name: then.get(name, "unknown") for name in compared}, compared)
    if not same_python:
        changed["versions"].append(f"python is {then.get('python')} there and {now['python']} here")
    for part in ("hyperparameters", "data", *(["code"] if same_python else [])):
        if part in here:
            changed[part] = _unlike(there.get(part, {}), here[part])
    return "", {part: found for part, found in changed.items() if found}


class OtherRun(Exception):
    """Something was read well, and is not of this run."""


def check_same_run(
    there: dict[str, Any], here: dict[str, Any], allow: tuple[str, ...], where: str
) -> None:
    """Refuses to resume a run that differs, and warns of what it is allowed to differ in.

    Args:
      there: what was saved.
      here: what the run is that resumes.
      allow: the parts that may differ.
      where: the name of what was saved.
    """
    never, changed = differences(there, here)
    if never:
        raise OtherRun(f"{never}.")
    refused = {part: found for part, found in changed.items() if part not in allow}
    if refused:
        told = ". ".join(f"Other {part}: {listed(found)}" for part, found in refused.items())
        raise OtherRun(
            f"is of a run that differs from this one. {told}. To resume with these changes, use"
            f" Checkpoints(..., allow={tuple(sorted({*allow, *refused}))!r})."
        )
    for part, found in changed.items():
        warnings.warn(f"{where} is resumed with other {part}: {listed(found)}.", stacklevel=3)


def listed(found: list[str]) -> str:
    """The first of some differences, and whether there are more."""
    return "; ".join(found[:_LISTED]) + (
        f"; and {len(found) - _LISTED} more" if found[_LISTED:] else ""
    )


def _unlike(there: dict[str, str], here: dict[str, str]) -> list[str]:
    return [
        f"{path} is {there.get(path, 'missing')} there and {here.get(path, 'missing')} here"
        for path in sorted(there.keys() | here.keys())
        if there.get(path) != here.get(path)
    ]


def _minor(python: Any) -> str:
    """Functions are compiled anew by another Python, not by another patch of it."""
    return ".".join(str(python).split(".")[:2])
