"""Estimators from gradients: how they scatter over minibatches, and how much the clients' differ.

    f_c(x) = the mean loss of client c over its n_c rows,    F(x) = sum_c p_c f_c(x)

with p_c = n_c / n ('samples') or 1 / N ('uniform'). Estimators run on the host: each sum over a
client's rows is one compiled program, what it returns is put together in NumPy, and no more than one
chunk's activations and a few gradients are held. The model is called with `key=None`: dropout is off,
and batch statistics are those of `variables.state`.

Noise. With g_j the gradient of row j of client c and s^2 = (1/n) sum_j ||g_j - grad f_c||^2, the mean
gradient of a minibatch has the variance

    'replacement':  s^2 / B
    'shuffled':     the mean over the minibatches of an epoch of  s^2 (n - b) / (b (n - 1)),

b = B rows in each but the last, which holds what is left. Of `samples` rows drawn without replacement,
the mean of ||g_j - grad f_c||^2 is an unbiased estimate of s^2, whose standard error is known, too.

Dissimilarity, in all its meanings:

    global_gradient  max over iterates of ||grad F||            (FedAvg with decaying local steps)
    client_gradient  max over clients of ||grad f_c||           (FedACG)
    spread           G:  sum_c p_c ||grad f_c - grad F||^2 <= G^2              (FedGBO, GHBM)
    offset, slope    G and B:  sum_c p_c ||grad f_c||^2 <= G^2 + B^2 ||grad F||^2    (SCAFFOLD)

For weights that sum to 1, the third is the fourth with B = 1.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike

from fedjax_opt.core import ClientData, Model, Objective, Variables, checks, trees

# How many numbers the gradients of the examples that are held at once may be together.
_ROOM = 2**24


class Estimate(NamedTuple):
    """An estimated constant, and what backs it.

    Attributes:
      value: the estimate; an array where there are several (one per client, say).
      residual: how far the truth may be, but for rounding: the residual of an eigenvalue, what a minimum
        may still lack, two standard errors of a sample. 0 where nothing was left out, infinite where
        nothing is known.
    """

    value: Any
    residual: Any


class Noise(NamedTuple):
    """How much the gradients of minibatches scatter; at several points, how much they do at most.

    Attributes:
      weighted: sum_c p_c^2 sigma_c^2, as FedAvg's bound has it.
      largest: max_c sigma_c^2, the sigma^2 of bounds that have one for all clients.
      clients: sigma_c^2 of each client, `[N]`.
      example_gradient: the largest norm of the gradient of one example, which bounds that of every
        minibatch (the R of FedGBO's bound).
    """

    weighted: Estimate
    largest: Estimate
    clients: Estimate
    example_gradient: float


class Dissimilarity(NamedTuple):
    """Gradients of F and of the clients, at the points that were looked at; exact but for rounding.

    Attributes:
      global_gradient: the largest ||grad F||.
      client_gradient: the largest ||grad f_c||.
      spread: the least G with sum_c p_c ||grad f_c - grad F||^2 <= G^2.
      offset: G of the closest G^2 + B^2 ||grad F||^2 that is nowhere below sum_c p_c ||grad f_c||^2.
      slope: its B, at least 1.
      global_norms: ||grad F|| at each point, `[points]`.
      client_norms: ||grad f_c||, `[points, N]`.
      losses: f_c, `[points, N]`.
    """

    global_gradient: float
    client_gradient: float
    spread: float
    offset: float
    slope: float
    global_norms: np.ndarray
    client_norms: np.ndarray
    losses: np.ndarray


def estimate_noise(
    model: Model,
    data: ClientData,
    variables: Variables | Sequence[Variables],
    *,
    batch_size: int,
    batching: str = "shuffled",
    weighting: str = "samples",
    samples: int | None = None,
    chunk_size: int = 256,
    seed: int = 0,
) -> Noise:
    """The variance of minibatch gradients, exact or from a sample of rows.

    Dropout is off, and adds nothing. A sample misses the largest gradient: `example_gradient` is then a
    lower bound.

    Args:
      model: the model, called with `key=None`, one example at a time.
      data: the clients' data.
      variables: the point to look at, or a list of points, of which each client's largest value counts.
      batch_size: B.
      batching: how a run would draw minibatches, in 'shuffled' epochs or with 'replacement'.
      weighting: the p_c, by 'samples' or 'uniform'.
      samples: how many rows of each client to look at, 2 at least; all of them by default, and those of
        clients that hold no more.
      chunk_size: the examples whose losses are computed at once; gradients of single examples are held
        for fewer at once if the model is large.
      seed: of the sample.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> model, data, optimum = fo.data.quadratics(3, 4, noise=0.5, num_examples=8)
      >>> at = fo.Variables({"x": jnp.zeros(4)})
      >>> found = fo.bounds.estimate_noise(model, data, at, batch_size=2)
      >>> found.clients.value.shape
      (3,)
      >>> float(fo.bounds.estimate_noise(model, data, at, batch_size=8).largest.value)
      0.0
    """
    check_sampling(batch_size, batching, samples)
    points = checked_points(variables)
    problem, rng = prepare(model, data, weighting, chunk_size), np.random.default_rng(seed)
    clients = range(len(problem.sizes))
    found = [[_scatter(problem, point, c, rng, samples) for c in clients] for point in points]
    mean, error, largest = np.moveaxis(np.array(found), -1, 0)  # each [points, N]
    check_finite("The norm of the gradient of an example", largest, ("point", "client"))
    share = _share(problem.sizes.astype(float), batch_size, batching)
    at = np.argmax(mean, axis=0), clients
    each = Estimate(share * mean[at], share * error[at])
    squares, worst = problem.weights**2, np.argmax(each.value)
    return Noise(
        # The errors of samples are independent.
        weighted=Estimate(squares @ each.value, np.linalg.norm(squares * each.residual)),
        largest=Estimate(each.value[worst], each.residual[worst]),
        clients=each,
        example_gradient=largest.max(),
    )


def check_sampling(batch_size: int, batching: str, samples: int | None) -> None:
    """Refuses minibatches that no run could draw, and samples without a standard error."""
    checks.integer("batch_size", batch_size, low=1)
    checks.choice("batching", batching, ("shuffled", "replacement"))
    if samples is not None:
        checks.integer("samples", samples, low=2)


def _scatter(problem, variables, client, rng, samples):
    """The mean of ||g_j - grad f_c||^2, two standard errors of it, and the largest ||g_j||."""
    mean_loss, size = problem.mean(variables, client), problem.sizes[client]
    rows = problem.offsets[client] + np.arange(size)
    rows = rows if samples is None else rng.permutation(rows)[:samples]
    centre = mean_loss.slope(mean_loss.start)[1]
    chunk = max(min(problem.chunk_size, _ROOM // len(centre)), 1)
    # The last chunk is filled up with rows that are seen already: one shape is one program.
    filled = np.resize(rows, -(-len(rows) // chunk) * chunk).reshape(-1, chunk)
    found = [_distances(problem.model, problem.examples, variables, r, centre) for r in filled]
    distances, norms = np.concatenate(found, axis=1, dtype=np.float64)[:, : len(rows)]
    # Of a finite population, without replacement: nothing is uncertain once all of it is seen.
    unseen = 1 - len(rows) / size
    error = 2 * np.sqrt(distances.var(ddof=1) / len(rows) * unseen) if unseen else 0.0
    return distances.mean(), error, norms.max()


def _share(n: np.ndarray, batch_size: int, batching: str) -> np.ndarray:
    """The variance of a minibatch's mean in units of that of one example, for clients of n rows."""
    if batching == "replacement":
        return np.ones_like(n) / batch_size

    def without_replacement(b):
        return (n - b) / (b * np.maximum(n - 1, 1))

    left = n % batch_size
    last = np.where(left > 0, without_replacement(np.maximum(left, 1)), 0)
    return (n // batch_size * without_replacement(batch_size) + last) / np.ceil(n / batch_size)


def estimate_dissimilarity(
    model: Model,
    data: ClientData,
    variables: Variables | Sequence[Variables],
    *,
    weighting: str = "samples",
    chunk_size: int = 256,
) -> Dissimilarity:
    """Bounds on gradients, and on how much those of the clients differ, over some points.

    The values hold for the points given, and are lower bounds of those that hold everywhere: give the
    models of a run, or points around them. Of all lines G^2 + B^2 ||grad F||^2 with B >= 1 that are
    nowhere below, (G, B) is the one whose mean distance is least; one point alone leaves B at 1.

    Args:
      model: the model, called with `key=None`; its state is held fixed.
      data: the clients' data.
      variables: the point to look at, or a list of points.
      weighting: the p_c, by 'samples' or 'uniform'.
      chunk_size: the examples whose losses are computed at once.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> model, data, optimum = fo.data.quadratics(num_clients=3, dimension=4)
      >>> points = [fo.Variables({"x": jnp.asarray(scale * optimum)}) for scale in (0.0, 1.0, 2.0)]
      >>> found = fo.bounds.estimate_dissimilarity(model, data, points)
      >>> bool(found.offset <= found.spread), bool(found.slope >= 1)
      (True, True)
    """
    points = checked_points(variables)
    problem = prepare(model, data, weighting, chunk_size)
    found = zip(*(_at_point(problem, x) for x in points), strict=True)
    steep, spread, norms, losses = map(np.array, found)
    check_finite("The mean loss", losses, ("point", "client"))
    check_finite("The norm of the gradient", norms, ("point", "client"))
    offset, slope = _closest_line(steep**2, spread)
    return Dissimilarity(
        global_gradient=steep.max(), client_gradient=norms.max(), spread=np.sqrt(spread.max()),
        offset=np.sqrt(offset), slope=np.sqrt(slope),
        global_norms=steep, client_norms=norms, losses=losses,
    )  # fmt: skip


def _at_point(problem, variables):
    """||grad F||, sum_c p_c ||grad f_c - grad F||^2, and the clients' gradient norms and losses."""
    mean, spread, seen, norms, losses = 0.0, 0.0, 0.0, [], []
    for client, weight in enumerate(problem.weights):
        loss = problem.mean(variables, client)
        value, gradient = loss.slope(loss.start)
        norms.append(np.linalg.norm(gradient))
        losses.append(value)
        # Welford's update: a difference of squares would lose the digits of clients that are alike.
        seen += weight
        away = gradient - mean
        mean = mean + weight / seen * away
        spread += weight * (away @ (gradient - mean))
    return np.linalg.norm(mean), spread, norms, losses


def _closest_line(squares: np.ndarray, spread: np.ndarray) -> tuple[float, float]:
    """G^2 >= 0 and B^2 >= 1 with spread_p <= G^2 + (B^2 - 1) squares_p, closest in the mean.

    For a given B, the least G^2 is max_p (spread_p - (B^2 - 1) squares_p), or 0. The mean distance is
    then convex and piecewise linear in B^2: it is least where two points, or a point and G = 0, meet.
    """
    rise, run = (np.subtract.outer(x, x).ravel() for x in (spread, squares))
    rise, run = np.append(rise, spread), np.append(run, squares)
    meeting = np.where(run != 0, rise / np.where(run != 0, run, 1), 0)
    slopes = np.sort(np.maximum(meeting, 0))
    above = spread - slopes[:, None] * squares
    offsets = np.maximum(np.max(above, axis=1), 0)
    best = np.argmin(offsets + slopes * np.mean(squares))  # the first: the least B, if several are
    return offsets[best], 1 + slopes[best]


# What the estimators of gradients and of curvature share.


class Problem(NamedTuple):
    """A model and its clients' data; `weights` are the p_c, in NumPy, as are offsets and sizes."""

    model: Model
    chunk_size: int
    examples: Any
    offsets: np.ndarray
    sizes: np.ndarray
    weights: np.ndarray

    def mean(self, variables: Variables, client: int | None = None) -> "MeanLoss":
        """F around a point, or f_c of one client."""
        clients = self.offsets, self.sizes, self.weights
        if client is not None:
            clients = self.offsets[[client]], self.sizes[[client]], np.ones(1)
        return MeanLoss(*self[:3], variables, tuple(map(jnp.asarray, clients)))


class MeanLoss(NamedTuple):
    """A weighted mean of clients' losses, as a function of one vector of parameters, for SciPy."""

    model: Model
    chunk_size: int
    examples: Any
    variables: Variables
    clients: tuple[jax.Array, ...]

    @property
    def start(self) -> np.ndarray:
        """The parameters as one vector."""
        return np.asarray(_vector(self.variables.params), np.float64)

    def at(self, x: np.ndarray) -> Variables:
        """The variables with the parameters x."""
        return self.variables._replace(params=_tree(self.variables.params, jnp.asarray(x)))

    def slope(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """The mean loss and its gradient."""
        loss, gradient = _slope(*self, jnp.asarray(x))
        return float(loss), np.asarray(gradient, np.float64)

    def product(self, x: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """The Hessian at x times a direction."""
        found = _product(*self, jnp.asarray(x), jnp.asarray(np.ravel(direction)))
        return np.asarray(found, np.float64)


def prepare(model: Model, data: ClientData, weighting: str, chunk_size: int) -> Problem:
    """The problem, checked."""
    checks.choice("weighting", weighting, ("samples", "uniform"))
    chunk_size = checks.integer("chunk_size", chunk_size, low=1)
    offsets, sizes = np.asarray(data.offsets, np.int32), np.asarray(data.sizes, np.int32)
    empty = np.flatnonzero(sizes == 0)
    if len(empty):
        raise ValueError(
            f"data must have no empty client, whose mean loss is not defined, but {len(empty)} hold no"
            f" example, client {empty[0]} among them. Select the others: data[data.sizes > 0]."
        )
    examples = jax.tree.map(jnp.asarray, data.examples)
    counts = sizes if weighting == "samples" else np.ones(len(sizes))
    return Problem(
        model, min(chunk_size, int(sizes.max())), examples, offsets, sizes, counts / counts.sum()
    )


def checked_points(variables: Variables | Sequence[Variables]) -> list[Variables]:
    """The points of the parameter space to look at, which must be alike."""
    points = [variables] if isinstance(variables, Variables) else list(variables)
    if not points or not all(isinstance(point, Variables) for point in points):
        raise ValueError(
            f"variables must be a Variables or a list with at least one of them, got {variables!r}."
        )
    points = [jax.tree.map(jnp.asarray, point) for point in points]
    checks.trainable(points[0].params)
    for i, point in enumerate(points):
        checks.same_structure(f"variables[{i}]", point, points[0], "that of variables[0]")
    return points


def check_finite(what: str, values: ArrayLike, axes: tuple[str, ...]) -> None:
    """Refuses results that are not finite, by point and client."""
    values = np.asarray(values)
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        where = " and ".join(f"{axis} {i}" for axis, i in zip(axes, bad[0], strict=True))
        raise ValueError(
            f"{what} must be finite, but {len(bad)} of {np.size(values)} are not, with"
            f" {values[tuple(bad[0])]}{f' at {where}' if where else ''}: look at the model's loss and"
            " its derivatives there."
        )


def _vector(tree):
    """All leaves in one vector, in float32 at least."""
    return ravel_pytree(_wide(tree))[0]


def _tree(like, x):
    wide, unravel = ravel_pytree(_wide(like))
    found = unravel(x.astype(wide.dtype))
    return jax.tree.map(lambda new, old: new.astype(old.dtype), found, like)


def _wide(tree):
    return jax.tree.map(lambda x: x.astype(trees.sum_dtype(x.dtype)), tree)


@partial(jax.jit, static_argnames="chunk_size")
def _slope(model, chunk_size, examples, variables, clients, x):
    """sum_c p_c f_c and its gradient at x, over clients (offset, size, p) `[n]`, chunk by chunk."""
    here = variables._replace(params=_tree(variables.params, x))
    vector = _vector(here.params)

    def of_client(total, client):
        offset, size, weight = client

        def of_chunk(k, total):
            positions = k * chunk_size + jnp.arange(chunk_size, dtype=jnp.int32)
            batch = jax.tree.map(lambda leaf: leaf[offset + positions % size], examples)
            mask = positions < size
            gradient, found = Objective(model, None, mask).gradient(here, batch)
            count = jnp.sum(mask, dtype=weight.dtype)
            share = (count / size.astype(weight.dtype) * weight).astype(vector.dtype)
            part = found.loss.astype(vector.dtype), _vector(gradient)
            return trees.add_scaled(total, share, part)

        return jax.lax.fori_loop(0, -(-size // chunk_size), of_chunk, total), ()

    nothing = jnp.zeros((), vector.dtype), jnp.zeros_like(vector)
    return jax.lax.scan(of_client, nothing, clients)[0]


@partial(jax.jit, static_argnames="chunk_size")
def _product(model, chunk_size, examples, variables, clients, x, direction):
    """The Hessian times a direction: the gradient's derivative along it, with no matrix."""

    def gradient(x):
        return _slope(model, chunk_size, examples, variables, clients, x)[1]

    return jax.jvp(gradient, (x,), (direction,))[1]


@jax.jit
def _distances(model, examples, variables, rows, centre):
    def of_row(row):
        batch = jax.tree.map(lambda leaf: leaf[row][None], examples)
        gradient = _vector(Objective(model).gradient(variables, batch)[0])
        away = gradient - centre.astype(gradient.dtype)
        return jnp.stack([jnp.sum(jnp.square(away)), jnp.linalg.norm(gradient)])

    return jax.vmap(of_row, out_axes=1)(rows)
