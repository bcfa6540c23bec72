"""Models, rounds and comparisons that the tests of algorithms share.

The rounds are in the oracles' format (see tests/oracles/reference.py). Models and strategies are made
once: two tests that use the same ones, with the same shapes, share a compiled round.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from hypothesis import Phase, settings
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import fedjax_opt as fo

STRATEGIES = {
    "scan": fo.Strategy("scan"),
    "vmap": fo.Strategy("vmap"),
    "chunked": fo.Strategy("chunked", size=2),
    "sharded": fo.Strategy("sharded"),
}


def examples(count):
    """So many random examples, and none to shrink a failing one: every step would compile anew."""
    return settings(max_examples=count, phases=[Phase.explicit, Phase.generate])


# Models ---------------------------------------------------------------------------------------


def _logreg(params, x):
    """Its features are its logits: it has no other activations for a penalty to act on."""
    logits = x @ params["w"] + params["b"][None, :]
    return logits, logits


def _mlp(params, x):
    hidden = jnp.tanh(x @ params["w1"] + params["b1"][None, :])
    return hidden @ params["w2"] + params["b2"][None, :], hidden


MODELS = {
    "logreg": fo.models.classifier(None, _logreg, features=1),
    "mlp": fo.models.classifier(None, _mlp, features=1),
}


def _linear_loss(variables, batch, key):
    """Linear regression in one leaf; its features are what each input adds to the prediction."""
    del key
    features = batch["x"] * variables.params["w"][None, :]
    errors = jnp.sum(features, axis=1) - batch["y"].astype(features.dtype)
    return jnp.mean(errors**2) / 2, fo.Aux(features=features)


# Compiles in half the time of the others, and its gradient is one line.
LINEAR = fo.Model(init=None, loss=_linear_loss)


def linear(params, x, y):
    """Loss and gradients of LINEAR, as the oracles take them."""
    errors = x @ params["w"] - y
    return np.mean(errors**2) / 2, {"w": x.T @ errors / len(y)}


def random_params(rng, model, features=3, hidden=4, classes=2):
    """Random parameters of one of the models, as NumPy arrays."""
    shapes = {
        "logreg": {"w": (features, classes), "b": (classes,)},
        "mlp": {
            "w1": (features, hidden),
            "b1": (hidden,),
            "w2": (hidden, classes),
            "b2": (classes,),
        },
        "linear": {"w": (features,)},
    }
    return {name: rng.normal(size=shape) for name, shape in shapes[model].items()}


# Rounds ---------------------------------------------------------------------------------------


def random_rounds(
    rng, *, rounds=3, num_clients=5, size=3, steps=4, batch=4, features=3, cohorts=None
):
    """Random cohorts with unequal numbers of steps and unequal weights, in the oracles' format.

    `cohorts` names the clients of each round instead, in place of `rounds` and `size`.
    """
    if cohorts is not None:
        rounds, size = len(cohorts), len(cohorts[0])

    def draw(rows):
        return rng.normal(size=(rows, features)), rng.integers(0, 2, size=rows)

    data = [draw(2 * batch) for _ in range(num_clients)]
    result = []
    for t in range(rounds):
        cohort = rng.permutation(num_clients)[:size] if cohorts is None else cohorts[t]
        result.append(
            {
                "clients": [int(i) for i in cohort],
                "weights": rng.uniform(0.2, 3.0, size=size),
                "batches": [
                    [draw(batch) for _ in range(rng.integers(1, steps + 1))] for _ in range(size)
                ],
                "full": [data[i] for i in cohort],
            }
        )
    return result


def equal_steps(rounds, steps):
    """The same rounds, in which every client takes as many steps: its minibatches over and over."""
    return [{**rnd, "batches": [(b * steps)[:steps] for b in rnd["batches"]]} for rnd in rounds]


def _stack(examples):
    x, y = zip(*examples, strict=True)
    return {"x": np.stack(x), "y": np.stack(y)}


def _stack_all(lists):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *map(_stack, lists))


def place(state, strategy):
    """The state on all devices if the strategy wants it there; else its first round compiles twice."""
    if strategy != "sharded":
        return state
    mesh = Mesh(np.array(jax.local_devices()), ("clients",))
    return jax.device_put(state, NamedSharding(mesh, PartitionSpec()))


def play(
    algorithm,
    model,
    params,
    rounds,
    *,
    num_clients,
    steps,
    strategy="scan",
    traced=True,
    state=None,
):
    """Plays rounds of the oracles' format; returns the state before them and after each, and the infos.

    They begin with `state`, if it is given, and not with the initial state of `params`. Each client's
    minibatches are filled up to `steps` with copies of its last one, and `num_steps` says how many
    count; `traced=False` leaves it out, for clients that all take `steps` steps.
    """
    round_fn = fo.make_round(algorithm, model, strategy=STRATEGIES[strategy])
    state = fo.first_state(algorithm, params, num_clients) if state is None else state
    state = place(state, strategy)
    states, infos = [state], []
    for rnd in rounds:
        filled = [list(b) + [b[-1]] * (steps - len(b)) for b in rnd["batches"]]
        keywords = {}
        if algorithm.probe is not None:
            probes = rnd.get("probe", rnd["full"])
            # Halves, as a client with little memory would be given them; one part for a minibatch.
            parts = 1 if "probe" in rnd else 2
            keywords["probe_batches"] = _stack_all(
                [list(zip(*(np.split(a, parts) for a in p), strict=True)) for p in probes]
            )
        if traced:
            keywords["num_steps"] = np.array([len(b) for b in rnd["batches"]], np.int32)
        state, info = round_fn(
            state, np.array(rnd["clients"]), _stack_all(filled), rnd.get("weights"), **keywords
        )
        states.append(state)
        infos.append(info)
    return states, infos


# Comparisons ----------------------------------------------------------------------------------


def distance(a, b):
    """The largest absolute difference of two trees of the same structure and shapes."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    largest = 0.0
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert np.shape(left) == np.shape(right)
        difference = np.abs(np.asarray(left, np.float64) - np.asarray(right, np.float64))
        assert np.all(np.isfinite(difference))
        largest = max(largest, float(np.max(difference, initial=0.0)))
    return largest


def assert_close(a, b, tolerance):
    """Fails unless two trees agree to an absolute tolerance in every entry."""
    found = distance(a, b)
    assert found <= tolerance, f"differ by {found}, allowed are {tolerance}"


def assert_same_bits(a, b):
    """Fails unless two trees are equal in every bit, dtypes included."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if jnp.issubdtype(left.dtype, jax.dtypes.prng_key):
            left, right = jax.random.key_data(left), jax.random.key_data(right)
        assert left.dtype == right.dtype
        assert np.asarray(left).tobytes() == np.asarray(right).tobytes()


def entry(tree, index):
    """One entry of every leaf: a client's part of what all keep, or a round's of what is remembered."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[index], tree)


def past(server):
    """What a server with a ring of tau rounds remembers, oldest first; no more than there were."""
    count, tau = int(server.ring.count), int(server.ring.tau)
    places = [t % tau for t in range(max(0, count - tau), count)]
    return [entry(server.ring.past, place) for place in places]


def statistics(state):
    """The server's optimiser statistics that are trees: {'m': ..., 'v': ...} as far as they exist."""
    stats = state.server.optimizer
    stats = getattr(stats, "triple", stats)
    found = {name: getattr(stats, name, ()) for name in ("m", "v")}
    return {name: tree for name, tree in found.items() if jax.tree.leaves(tree)}


DECAY = 0.05
# Made once: an optax transformation is structure, so another one would compile another round.
_DECAY = optax.add_decayed_weights(DECAY)


def with_decay(triple):
    """A triple behind the coupled weight decay that the oracles know."""
    return fo.optimizers.chain(_DECAY, triple)
