"""Costs, tables, and the parts of docs/gallery.md that are written by a script."""

import re
from typing import Any

import jax
import jax.numpy as jnp
from catalogue import ENTRIES, MODEL, REFERENCES, TASK, WRAPPERS, Entry

import fedjax_opt as fo
from fedjax_opt import optimizers as opt


def model_shapes() -> fo.Variables:
    """The shapes of the model's variables, which are all that a cost needs."""
    batch = {"x": jnp.zeros((1, 64), jnp.float32), "y": jnp.zeros(1, jnp.int32)}
    return jax.eval_shape(lambda key: MODEL.init(key, batch), jax.random.key(0))


def costs(algorithm: fo.Algorithm) -> dict[str, float]:
    """What `fedjax_opt.costs.of` says, in units of |x|. Counters of a few bytes vanish in rounding."""
    shapes = model_shapes()
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    cost = fo.costs.of(algorithm, shapes, cohort_size=TASK["cohort_size"])
    return {name: round(value / size, 2) for name, value in cost._asdict().items()}


COST_COLUMNS = {
    "bytes_down": "down",
    "bytes_up": "up",
    "client_memory": "client memory",
    "client_state": "client state",
    "server_state": "server state",
}


def table(header: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cost_cells(algorithm: fo.Algorithm, columns: Any = COST_COLUMNS) -> list[str]:
    """A row's costs."""
    found = costs(algorithm)
    return [f"{found[name]:g}" for name in columns]


def generated_parts(results: dict[str, Any]) -> dict[str, str]:
    """The parts of the page that this script writes, by their names."""
    trained = results["algorithms"]
    made = {key: e.make(trained[key]["step"]) for key, e in ENTRIES.items()}
    cells = {key: cost_cells(algorithm) for key, algorithm in made.items()}
    with_server = {**COST_COLUMNS, "server_memory": "server memory"}
    parts = {
        "costs": table(
            ["algorithm", *COST_COLUMNS.values()],
            [[linked(key, entry), *cells[key]] for key, entry in ENTRIES.items()],
        ),
        "measured": measured(
            {key: entry for key, entry in ENTRIES.items() if entry.own is None}, trained, "accuracy"
        ),
        "users": measured(
            {**REFERENCES, **{key: entry for key, entry in ENTRIES.items() if entry.own}},
            {**trained, **results["references"]},
            "user accuracy",
        ),
        "wrappers": table(
            ["wrapper around FedAvg", *with_server.values()],
            [
                [f"[`{name}`](#{name})", *cost_cells(make_wrapped(name), with_server)]
                for name in WRAPPERS
            ],
        ),
    }
    for key, entry in ENTRIES.items():
        parts[key] = "\n\n".join(
            [
                python_block(entry.shown(trained[key]["step"])),
                table(list(COST_COLUMNS.values()), [cells[key]]),
                f"![{entry.title}: {'user' if entry.own else 'test'} accuracy over the rounds]"
                f"(images/gallery/{key}.svg)",
            ]
        )
    for name, code in WRAPPERS.items():
        parts[name] = python_block(code)
    return parts


def anchor(key: str) -> str:
    """The heading of an algorithm: variants share one."""
    return key.split("-")[0]


def make_wrapped(name: str) -> fo.Algorithm:
    """FedAvg in a wrapper."""
    return eval(WRAPPERS[name], {"fo": fo, "opt": opt})


def linked(key: str, entry: Entry) -> str:
    """A name that leads to its section."""
    return f"[{entry.title}](#{anchor(key)})"


def measured(entries: dict[str, Entry], trained: dict[str, Any], accuracy: str) -> str:
    """A table of measurements."""
    return table(
        ["algorithm", "step", accuracy, f"rounds to {TASK['target']:.0%}"],
        [[linked(key, entry), *measured_cells(trained[key])] for key, entry in entries.items()],
    )


def measured_cells(trained: dict[str, Any]) -> list[str]:
    """A row's measurements."""
    reached = trained["rounds_to_target"]
    return [
        f"{trained['step']:g}",
        f"{trained['accuracy']:.1%}",
        "-" if reached is None else str(reached),
    ]


def python_block(code: str) -> str:
    """A line of code that names its algorithm."""
    return f"```python\nalgorithm = {code}\n```"


def fill_page(page: str, parts: dict[str, str]) -> str:
    """The page with the text between `<!-- name -->` and `<!-- /name -->` written anew."""
    for name, text in parts.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        page, count = pattern.subn(lambda m, text=text: f"{m[1]}\n{text}\n\n{m[2]}", page)
        if count != 1:
            raise ValueError(f"the page must hold one part {name!r}, found {count}.")
    return page
