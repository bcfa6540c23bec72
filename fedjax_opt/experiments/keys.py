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
    Member,
    format_range,
    parse_member,
    parse_range,
)
from fedjax_opt.experiments.results import CRITERIA
from fedjax_opt.experiments.search import Range
from fedjax_opt.experiments.specs import Spec, format_value, parse, parse_value


class Key(NamedTuple):
    """A field of an experiment.

    Attributes:
      called: what a file has for it, for messages.
      read: from what a file has to the value; a TypeError if it is something else.
      help: what it means.
      choices: the words that it may be, or be made of; empty if it is no word.
    """

    called: str
    read: Callable[[Any], Any]
    help: str
    choices: tuple[str, ...] = ()


def read(name: str, held: Any) -> Any:
    """The value of a field, from what a file has."""
    key = KEYS[name]
    try:
        return key.read(held)
    except TypeError:
        raise ValueError(f"{name} must be {key.called}, got {held!r}.") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def write(value: Any) -> Any:
    """What a file has for a value."""
    if isinstance(value, Mapping):
        return {name: _write_axis(values) for name, values in value.items()}
    if isinstance(value, (Spec, Member)):
        return str(value)
    # A Spec is a tuple, too.
    return list(map(write, value)) if isinstance(value, (tuple, list)) else value


def split(name: str, texts: Sequence[str]) -> Any:
    """What a file has for the texts of an option."""
    if name == "algorithms":
        return list(texts)
    if name == "grid":
        return _split_grid(texts)
    if KEYS[name].called.startswith("a list"):
        return list(parse_value(f"[{','.join(texts)}]"))
    if len(texts) != 1:
        raise TypeError
    return texts[0] if KEYS[name].read in (_word, _spec) else parse_value(texts[0])


def show(value: Any) -> list[str]:
    """The texts of an option, as `split` takes them."""
    if isinstance(value, Mapping):
        return [
            f"{name}={format_range(v) if isinstance(v, Range) else ','.join(map(format_value, v))}"
            for name, v in value.items()
        ]
    if isinstance(value, (str, Spec)):
        return [str(value)]
    if isinstance(value, (tuple, list)):
        if value and isinstance(value[0], Member):
            return list(map(str, value))
        return [",".join(map(format_value, value))]
    return [format_value(value)]


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


_word = _of_type(str)


def _spec(held: Any) -> Spec:
    return parse(_word(held))


WHOLE = "a whole number", _of_type(int)
NUMBER = "a number", _of_type(float, int)
WORD = "a word", _word
SPEC = "a text, 'name' or 'name(key=value)'", _spec
WHOLES = "a list of whole numbers, such as [0, 1, 2]", _list_of(_of_type(int))
WORDS = "a list of words", _list_of(_word)
MEMBERS = (
    "a list of texts, such as ['fedavg', 'slow: fedavg(learning_rate=0.01)']",
    _list_of(lambda held: parse_member(_word(held))),
)
GRID = (
    "a table of hyperparameters that is not empty, each with a list of values or, in a random search,"
    " a range such as 'loguniform(0.001, 1)'",
    _read_grid,
)

#: The fields of `Experiment` by name, in the order in which a file has them.
KEYS: dict[str, Key] = {
    "task": Key(*SPEC, "Data, split and model: `fedjax-opt list tasks` shows all."),
    "algorithms": Key(
        *MEMBERS,
        "What is run, each as 'algorithm(argument=value) + wrapper(argument=value)', and 'label:' before"
        " it if it is to be called otherwise. `fedjax-opt list algorithms` shows all, and `fedjax-opt"
        " list wrappers` what may be put around them. Without any arguments it is as the task suggests.",
    ),
    "rounds": Key(*WHOLE, "Rounds of each run (left out: the task's)."),
    "seeds": Key(*WHOLES, "One run for each: of the initial model and of all that is drawn."),
    "cohort_size": Key(*WHOLE, "Clients in each round (left out: the task's)."),
    "batch_size": Key(*WHOLE, "Examples in a local step (left out: the task's)."),
    "local_steps": Key(*WHOLE, "Local steps of a client in a round (left out: the task's)."),
    "local_epochs": Key(*WHOLE, "Local epochs, in place of local steps (left out: the task's)."),
    "controller": Key(
        *SPEC,
        "What changes the local steps or the learning rate from round to round (left out: nothing);"
        " `fedjax-opt list controllers` shows all.",
    ),
    "evaluate_every": Key(*WHOLE, "Rounds between evaluations on the test set."),
    "test_examples": Key(
        *WHOLE, "How many examples of the test set are evaluated, drawn once (left out: all)."
    ),
    "weighting": Key(*WORD, "What the mean over clients weighs them by.", WEIGHTINGS),
    "batching": Key(*WORD, "How a client draws its minibatches.", BATCHINGS),
    "diagnostics": Key(*WORDS, "What to measure of the clients' drift, and of what they send.", NAMES),
    "validation": Key(
        *NUMBER,
        "The share of each client's training examples that is taken out of it, to choose points of the"
        " grid by (left out: none, and points are chosen on the test set).",
    ),
    "samples": Key(
        *WHOLE, "How many points of the grid to draw at random (left out: all of them are tried)."
    ),
    "search_seed": Key(*WHOLE, "Of the draw of these points."),
    "metric": Key(
        *WORD,
        "What is compared: a metric of the model, and which way is better where its name does not say"
        " it: 'accuracy', 'min rmse' (left out: accuracy, else loss).",
    ),
    "criterion": Key(*WORD, "By what the best hyperparameters are chosen.", tuple(CRITERIA)),
    "smoothing": Key(
        *NUMBER,
        "The decay of the moving average of a curve before it is judged (0: as it is; FedACG: 0.9).",
    ),
    "target": Key(*NUMBER, "A value of the metric to reach."),
    "download_mbps": Key(
        *NUMBER, "Megabits per second to a client, for the simulated time (left out: 20)."
    ),
    "upload_mbps": Key(*NUMBER, "Megabits per second from a client (left out: 5)."),
    "device_gflops": Key(
        *NUMBER,
        "Billions of operations per second of a client (left out: 2.4, a Raspberry Pi 3B+).",
    ),
    "grid": Key(
        *GRID,
        "Values to try by hyperparameter: learning_rate = [0.1, 0.3]; of a wrapper,"
        " \"clipped.max_norm\"; of one algorithm alone, \"label:learning_rate\"; or local_steps,"
        " local_epochs. With samples, also a range: learning_rate = \"loguniform(0.001, 1)\".",
    ),
}  # fmt: skip
