"""The fields of an experiment as a file has them, and as options of a command have them.

            a file                                  options
task        "digits(num_clients=50)"                digits(num_clients=50)
algorithms  ["fedavg", "slow: fedprox(mu=1)"]       fedavg   slow: fedprox(mu=1)
seeds       [0, 1, 2]                               0,1,2
grid        learning_rate = [0.1, 0.3]              learning_rate=0.1,0.3
            mu = "loguniform(0.001, 1.0)"           mu=loguniform(0.001, 1.0)
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_opt.core.federation import BATCHINGS, WEIGHTINGS
from fedjax_opt.engine.diagnostics import NAMES
from fedjax_opt.experiments.experiment import (
    RANGE,
    format_range,
    parse_member,
    parse_range,
)
from fedjax_opt.experiments.results import CRITERIA
from fedjax_opt.experiments.search import Range
from fedjax_opt.experiments.specs import format_value, parse, parse_value


class Kind(NamedTuple):
    """How the values of a field are read and written.

    Attributes:
      called: what a file has, for messages.
      read: from what a file has to the value; a TypeError if it is something else.
      write: from the value to what a file has.
      split: from the texts of an option to what a file has.
      show: from the value to the texts of an option.
    """

    called: str
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]
    split: Callable[[Sequence[str]], Any]
    show: Callable[[Any], list[str]]


class Key(NamedTuple):
    """A field of an experiment.

    Attributes:
      kind: how its values are read and written.
      help: what it means.
      choices: the words that it may be, or be made of; empty if it is no word.
    """

    kind: Kind
    help: str
    choices: tuple[str, ...] = ()


def read(name: str, held: Any) -> Any:
    """The value of a field.

    Args:
      name: the field's.
      held: what a file has.
    """
    kind = KEYS[name].kind
    try:
        return kind.read(held)
    except TypeError:
        raise ValueError(f"{name} must be {kind.called}, got {held!r}.") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _of_type(*types: type) -> Callable[[Any], Any]:
    def read_one(held: Any) -> Any:
        if not isinstance(held, types) or isinstance(held, bool):
            raise TypeError
        return types[0](held)

    return read_one


def _list_of(read_one: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    def read_all(held: Any) -> tuple[Any, ...]:
        if not isinstance(held, (list, tuple)):
            raise TypeError
        return tuple(map(read_one, held))

    return read_all


def _one(texts: Sequence[str]) -> str:
    if len(texts) != 1:
        raise TypeError
    return texts[0]


def _parsed(texts: Sequence[str]) -> Any:
    return parse_value(_one(texts))


def _parsed_all(texts: Sequence[str]) -> Any:
    return parse_value(f"[{','.join(texts)}]")


def _shown(value: Any) -> list[str]:
    return [format_value(value)]


def _shown_all(values: Any) -> list[str]:
    return [",".join(map(format_value, values))]


def _texts(specs: Sequence[Any]) -> list[str]:
    return list(map(str, specs))


def _read_axis(held: Any) -> tuple[Any, ...]:
    if isinstance(held, str):
        return parse_range(held)
    if not isinstance(held, list) or not all(isinstance(v, (int, float, str)) for v in held):
        raise TypeError
    return tuple(parse_value(v) if isinstance(v, str) else v for v in held)


def _write_axis(values: tuple[Any, ...]) -> Any:
    if isinstance(values, Range):
        return format_range(values)
    # Words, lists and specs are texts of their own, so that 'true' and true stay two things.
    return [v if isinstance(v, (int, float)) else format_value(v) for v in values]


def _read_grid(held: Any) -> dict[str, tuple[Any, ...]]:
    if not isinstance(held, Mapping) or not held:
        raise TypeError
    return {name: _read_axis(axis) for name, axis in held.items()}


def _write_grid(grid: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    return {name: _write_axis(values) for name, values in grid.items()}


def _split_grid(texts: Sequence[str]) -> dict[str, Any]:
    found = {}
    for text in texts:
        name, equals, values = (part.strip() for part in text.partition("="))
        if not name or not equals:
            raise ValueError(f"expected hyperparameter=value,value, got {text!r}.")
        if not RANGE.fullmatch(values):
            listed = values if values.startswith("[") else f"[{values}]"
            values = _write_axis(parse_value(listed))
        if name in found:
            raise ValueError(f"{name} is given twice: give all of its values at once.")
        found[name] = values
    return found


def _show_grid(grid: Mapping[str, tuple[Any, ...]]) -> list[str]:
    return [
        f"{name}={format_range(values) if isinstance(values, Range) else _shown_all(values)[0]}"
        for name, values in grid.items()
    ]


_TEXT = _of_type(str)
WHOLE = Kind("a whole number", _of_type(int), int, _parsed, _shown)
NUMBER = Kind("a number", _of_type(float, int), float, _parsed, _shown)
WORD = Kind("a word", _TEXT, str, _one, lambda value: [value])
SPEC = Kind(
    "a text, 'name' or 'name(key=value)'",
    lambda held: parse(_TEXT(held)), str, _one, lambda value: [str(value)],
)  # fmt: skip
WHOLES = Kind(
    "a list of whole numbers, such as [0, 1, 2]",
    _list_of(_of_type(int)), lambda values: list(map(int, values)), _parsed_all, _shown_all,
)  # fmt: skip
WORDS = Kind("a list of words", _list_of(_TEXT), list, _parsed_all, _shown_all)
MEMBERS = Kind(
    "a list of texts, such as ['fedavg', 'slow: fedavg(learning_rate=0.01)']",
    _list_of(lambda held: parse_member(_TEXT(held))), _texts, list, _texts,
)  # fmt: skip
GRID = Kind(
    "a table of hyperparameters that is not empty, each with a list of values or, in a random search,"
    " a range such as 'loguniform(0.001, 1)'",
    _read_grid, _write_grid, _split_grid, _show_grid,
)  # fmt: skip

#: The fields of `Experiment` by name, in the order in which a file has them.
KEYS: dict[str, Key] = {
    "task": Key(SPEC, "Data, split and model: `fedjax-opt list tasks` shows all."),
    "algorithms": Key(
        MEMBERS,
        "What is run, each as 'algorithm(argument=value) + wrapper(argument=value)', and 'label:' before"
        " it if it is to be called otherwise. `fedjax-opt list algorithms` shows all, and `fedjax-opt"
        " list wrappers` what may be put around them. Without any arguments it is as the task suggests.",
    ),
    "rounds": Key(WHOLE, "Rounds of each run (left out: the task's)."),
    "seeds": Key(WHOLES, "One run for each: of the initial model and of all that is drawn."),
    "cohort_size": Key(WHOLE, "Clients in each round (left out: the task's)."),
    "batch_size": Key(WHOLE, "Examples in a local step (left out: the task's)."),
    "local_steps": Key(WHOLE, "Local steps of a client in a round (left out: the task's)."),
    "local_epochs": Key(WHOLE, "Local epochs, in place of local steps (left out: the task's)."),
    "controller": Key(
        SPEC,
        "What changes the local steps or the learning rate from round to round (left out: nothing);"
        " `fedjax-opt list controllers` shows all.",
    ),
    "evaluate_every": Key(WHOLE, "Rounds between evaluations on the test set."),
    "test_examples": Key(
        WHOLE, "How many examples of the test set are evaluated, drawn once (left out: all)."
    ),
    "weighting": Key(WORD, "What the mean over clients weighs them by.", WEIGHTINGS),
    "batching": Key(WORD, "How a client draws its minibatches.", BATCHINGS),
    "diagnostics": Key(WORDS, "What to measure of the clients' drift, and of what they send.", NAMES),
    "samples": Key(
        WHOLE, "How many points of the grid to draw at random (left out: all of them are tried)."
    ),
    "search_seed": Key(WHOLE, "Of the draw of these points."),
    "metric": Key(
        WORD,
        "What is compared: a metric of the model, and which way is better where its name does not say"
        " it: 'accuracy', 'min rmse' (left out: accuracy, else loss).",
    ),
    "criterion": Key(WORD, "By what the best hyperparameters are chosen.", tuple(CRITERIA)),
    "smoothing": Key(
        NUMBER,
        "The decay of the moving average of a curve before it is judged (0: as it is; FedACG: 0.9).",
    ),
    "target": Key(NUMBER, "A value of the metric to reach."),
    "download_mbps": Key(
        NUMBER, "Megabits per second to a client, for the simulated time (left out: 20)."
    ),
    "upload_mbps": Key(NUMBER, "Megabits per second from a client (left out: 5)."),
    "device_gflops": Key(
        NUMBER,
        "Billions of operations per second of a client (left out: 2.4, a Raspberry Pi 3B+).",
    ),
    "grid": Key(
        GRID,
        "Values to try by hyperparameter: learning_rate = [0.1, 0.3]; of a wrapper,"
        " \"clipped.max_norm\"; of one algorithm alone, \"label:learning_rate\"; or local_steps,"
        " local_epochs. With samples, also a range: learning_rate = \"loguniform(0.001, 1)\".",
    ),
}  # fmt: skip
