"""Problems whose constants are known: quadratics in closed form, logistic regression by SciPy.

Both are data of one model, and of one shape, so that they share compiled programs.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

import fedjax_opt as fo

D, SIZES, L2 = 6, (9, 1, 40, 5), 0.05
N, ROWS = len(SIZES), sum(SIZES)
OWNER = np.repeat(np.arange(N), SIZES)
ROWS_OF = [np.flatnonzero(np.equal(OWNER, c)) for c in range(N)]
WEIGHTS = {"samples": np.array(SIZES) / ROWS, "uniform": np.full(N, 1 / N)}
TRACES = []


def _loss(variables, batch, key):
    """w^T A w / 2 + e^T w + s log(1 + exp(-z^T w)): quadratic or logistic, as the data say."""
    assert key is None, "estimators look at the model as evaluation does"
    TRACES.append(None)
    w = jnp.concatenate([variables.params["a"].ravel(), variables.params["b"]])
    quadratic = jnp.einsum("i,nij,j->n", w, batch["A"], w) / 2 + batch["e"] @ w
    losses = quadratic + batch["s"] * jax.nn.softplus(-batch["z"] @ w)
    losses = losses * variables.state["scale"]
    return losses.mean(), fo.Aux(losses=losses)


MODEL = fo.Model(init=lambda key, batch: point(np.zeros(D)), loss=_loss)


def point(w, dtype=np.float64, scale=1.0):
    params = {"a": jnp.asarray(w[:4].reshape(2, 2), dtype), "b": jnp.asarray(w[4:], dtype)}
    return fo.Variables(params, {"scale": jnp.asarray(scale, dtype)})


def vector(variables):
    return np.concatenate([variables.params["a"].ravel(), variables.params["b"]])


def client_data(rows, dtype=np.float64):
    return fo.ClientData.from_arrays({k: v.astype(dtype) for k, v in rows.items()}, OWNER)


class Quadratic:
    """Clients (w - b_c)^T A_c (w - b_c) / 2 with known spectra, and noise of known variance."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.spectra = np.stack([np.geomspace(0.1 * (c + 1), 4.0 - c / 2, D) for c in range(N)])
        rotations = np.linalg.qr(rng.normal(size=(N, D, D)))[0]
        self.A = np.einsum("cij,cj,ckj->cik", rotations, self.spectra, rotations)
        self.b = rng.normal(size=(N, D))
        self.variance = np.array([2.0, 0.0, 0.5, 1.0])
        xi = rng.normal(size=(ROWS, D))
        for rows, variance in zip(ROWS_OF, self.variance, strict=True):
            own = xi[rows] - xi[rows].mean(0)
            xi[rows] = own * np.sqrt(variance / max((own**2).sum(1).mean(), 1e-300))
        shift = -np.einsum("cij,cj->ci", self.A, self.b)
        self.rows = {
            "A": self.A[OWNER], "e": shift[OWNER] + xi, "s": np.zeros(ROWS),
            "z": np.zeros((ROWS, D)),
        }  # fmt: skip

    def gradients(self, w):
        return np.einsum("cij,cj->ci", self.A, w - self.b)

    def hessians(self, w):
        return self.A

    def example_gradients(self, w):
        return np.einsum("nij,j->ni", self.rows["A"], w) + self.rows["e"]

    def minimum(self, p):
        """Of sum_c p_c f_c, whose constant is that of the model: f_c(0) = 0."""
        A, Ab = np.einsum("c,cij->ij", p, self.A), np.einsum("c,cij,cj->i", p, self.A, self.b)
        w = np.linalg.solve(A, Ab)
        return -Ab @ w / 2, w

    def losses(self, w):
        return np.einsum("i,cij,cj->c", w, self.A, w / 2 - self.b)


class Logistic:
    """Logistic regression with a quadratic penalty."""

    def __init__(self):
        rng = np.random.default_rng(1)
        centres = 2 * rng.normal(size=(N, D))
        z = rng.normal(size=(ROWS, D)) + centres[OWNER] * rng.choice([1, 0.2], size=(ROWS, 1))
        self.rows = {
            "A": np.repeat(L2 * np.eye(D)[None], ROWS, 0), "e": np.zeros((ROWS, D)),
            "s": np.ones(ROWS), "z": z,
        }  # fmt: skip

    def _mean(self, values):
        return np.stack([values[rows].mean(0) for rows in ROWS_OF])

    def losses(self, w):
        return self._mean(np.logaddexp(0, -self.rows["z"] @ w)) + L2 * w @ w / 2

    def example_gradients(self, w):
        z = self.rows["z"]
        return L2 * w - z / (1 + np.exp(z @ w))[:, None]

    def gradients(self, w):
        return self._mean(self.example_gradients(w))

    def hessians(self, w):
        """The dense matrices, by automatic differentiation."""
        shares = np.eye(N)[:, OWNER] / np.array(SIZES)[:, None]
        return np.asarray(_dense_hessians(w, self.rows["z"], shares))

    def minimum(self, p):
        def hessian(w):
            return np.einsum("c,cij->ij", p, self._hessians(w))

        w = scipy.optimize.minimize(
            lambda w: p @ self.losses(w), np.zeros(D), jac=lambda w: p @ self.gradients(w),
            hess=hessian, method="trust-exact", options={"gtol": 1e-8},
        ).x  # fmt: skip
        for _ in range(2):  # the last digits
            w = w - np.linalg.solve(hessian(w), p @ self.gradients(w))
        assert np.linalg.norm(p @ self.gradients(w)) < 1e-13
        return p @ self.losses(w), w

    def _hessians(self, w):
        z, odds = self.rows["z"], np.exp(self.rows["z"] @ w)
        return self._mean(np.einsum("n,ni,nj->nij", odds / (1 + odds) ** 2, z, z)) + L2 * np.eye(D)


@jax.jit
@partial(jax.vmap, in_axes=(None, None, 0))
def _dense_hessians(w, z, share):
    return jax.hessian(lambda w: share @ jax.nn.softplus(-z @ w) + L2 * w @ w / 2)(w)


PROBLEMS = {"quadratic": Quadratic(), "logistic": Logistic()}
START = np.random.default_rng(2).normal(size=D)
POINTS = [START, -START / 2, np.zeros(D)]
VARIABLES = [point(w) for w in POINTS]
