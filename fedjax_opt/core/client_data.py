"""Federated data, flat: all examples in one array, and where each client's begin."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import chex
import jax
import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.core.aliases import Examples, Values
from fedjax_opt.core.struct import changed, put, struct

Clients = TypeVar("Clients", bound="_Clients")


class Summary(NamedTuple):
    """What a federated data set looks like.

    Attributes:
      num_clients: N.
      num_examples: the examples of all clients.
      smallest: the size of the smallest client.
      median: the median size.
      largest: the size of the largest client.
      label_skew: the mean total variation distance between a client's label distribution and that of
        all examples: 0 for identical clients, near 1 for clients of one rare class each; None if the
        data has no labels.
    """

    num_clients: int
    num_examples: int
    smallest: int
    median: float
    largest: int
    label_skew: float | None

    def __str__(self) -> str:
        text = (
            f"{self.num_examples} examples on {self.num_clients} clients"
            f" (smallest {self.smallest}, median {self.median:g}, largest {self.largest})"
        )
        return text if self.label_skew is None else f"{text}, label skew {self.label_skew:.2f}"


class Sizes(NamedTuple):
    """Facts about the numbers of examples by which a program may be made simpler.

    Attributes:
      gcd: their greatest common divisor: where a batch size divides it, all minibatches are full.
      smallest: the smallest.
      largest: the largest.
    """

    gcd: int
    smallest: int
    largest: int

    @classmethod
    def of(cls, sizes: chex.ArrayNumpy) -> "Sizes":
        """The facts of some sizes, int `[N]`."""
        return cls(int(np.gcd.reduce(sizes)), int(sizes.min()), int(sizes.max()))


class _Clients:
    """What can be asked of clients' data, wherever the examples are."""

    examples: Examples
    offsets: Values
    sizes: Values
    known: Sizes | None

    def __post_init__(self) -> None:
        # They follow from the sizes: facts of other sizes would give wrong numbers in silence.
        if self.known is not None and isinstance(self.sizes, (np.ndarray, jax.Array)):
            known = None if checks.is_traced(self.sizes) else Sizes.of(np.asarray(self.sizes))
            put(self, known=known)

    def without_known_sizes(self: Clients) -> Clients:
        """The same data, whose sizes are traced wherever it is an argument of a program.

        Another split of as many examples then compiles nothing anew, and several can be stacked. In
        return, all minibatches are taken for partly filled.
        """
        return changed(self, known=None)

    @property
    def num_clients(self) -> int:
        """N, the number of clients."""
        return self.sizes.shape[0]

    @property
    def num_examples(self) -> int:
        """The number of examples of all clients together."""
        return jax.tree.leaves(self.examples)[0].shape[0]

    def __len__(self) -> int:
        return self.num_clients

    def __getitem__(self, clients: Any) -> Examples:
        """One client's examples for an int; a `ClientData` of several for a slice or a list of ids."""
        if isinstance(clients, (int, np.integer)):
            if not -self.num_clients <= clients < self.num_clients:
                raise IndexError(f"client {clients} of {self.num_clients} does not exist.")
            start, size = int(self.offsets[clients]), int(self.sizes[clients])
            return jax.tree.map(lambda x: x[start : start + size], self.examples)
        return self._take([self._rows(i) for i in np.arange(self.num_clients)[clients]])

    def _rows(self, client: int) -> np.ndarray:
        return np.arange(self.sizes[client]) + self.offsets[client]

    def _take(self, rows_by_client: list[np.ndarray]) -> "ClientData":
        if not rows_by_client:
            raise ValueError("A ClientData needs at least one client, but none was selected.")
        rows = np.concatenate(rows_by_client)
        examples = jax.tree.map(lambda x: np.asarray(x)[rows], self.examples)
        sizes = np.array([len(rows) for rows in rows_by_client])
        return ClientData.from_sizes(examples, sizes, allow_empty=True)

    def split(self, test_fraction: float = 0.2, seed: int = 0) -> tuple["ClientData", "ClientData"]:
        """Splits each client's examples at random into training and test sets.

        Args:
          test_fraction: the share of each client's examples for the test set, rounded, in (0, 1).
            Every client keeps at least one training example, and gives one test example if it has
            two or more.
          seed: of the shuffle.

        Returns:
          (train, test), with the same clients in the same order. A client of one example has an empty
          test set.
        """
        checks.number(
            "test_fraction", test_fraction, low=0.0, high=1.0, open_low=True, open_high=True
        )
        generator = np.random.default_rng(seed)
        train, test = [], []
        for client, size in enumerate(self.sizes):
            rows = generator.permutation(self._rows(client))
            count = min(max(round(float(size) * test_fraction), 1), max(int(size) - 1, 0))
            test.append(rows[:count])
            train.append(rows[count:])
        return self._take(train), self._take(test)

    def summary(self, label: Hashable = "y") -> Summary:
        """Sizes, and how differently the clients' labels are distributed.

        Args:
          label: the key of the labels in `examples`; ignored if there is none.
        """
        sizes = np.asarray(self.sizes)
        return Summary(
            num_clients=self.num_clients,
            num_examples=self.num_examples,
            smallest=int(sizes.min()),
            median=float(np.median(sizes)),
            largest=int(sizes.max()),
            label_skew=self._label_skew(label),
        )

    def _label_skew(self, label: Hashable) -> float | None:
        if not isinstance(self.examples, Mapping) or label not in self.examples:
            return None
        labels = np.asarray(self.examples[label])
        if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
            return None
        classes, codes = np.unique(labels, return_inverse=True)
        owners = np.repeat(np.arange(self.num_clients), self.sizes)
        counts = np.zeros((self.num_clients, len(classes)))
        np.add.at(counts, (owners, codes), 1)
        occupied = counts[counts.sum(1) > 0]
        everyone = counts.sum(0) / counts.sum()
        own = occupied / occupied.sum(1, keepdims=True)
        return float(np.mean(np.abs(own - everyone).sum(1) / 2))


def _stacked(number: int, examples: Sequence[Any], padded: Callable[[Any], Examples]) -> Examples:
    """One client's examples in arrays."""
    if not isinstance(examples, Sequence) or not examples:
        raise ValueError(
            f"With padded, clients[{number}] must be a list of at least one example, got"
            f" {'an empty one' if isinstance(examples, Sequence) else type(examples).__name__}."
        )
    made = [padded(example) for example in examples]
    try:
        return jax.tree.map(lambda *parts: np.stack(parts), *made)
    except ValueError as error:
        raise ValueError(
            f"padded must return arrays of the same shapes for all examples, but on clients[{number}]"
            f" it does not: {error}."
        ) from error


@struct("known")
class ClientData(_Clients):
    """Examples of all clients without padding: client i owns rows offset_i .. offset_i + size_i - 1.

    A client with 5 examples and one with 50,000 cost what they hold. It is a pytree, so it can be an
    argument of a compiled program, where minibatches are gathered by index.

    Attributes:
      examples: a pytree of arrays `[total, ...]`, grouped by client.
      offsets: int32 `[N]`, each client's first row.
      sizes: int32 `[N]`, each client's number of rows.
      known: facts about the sizes that are compiled in; the `from_` methods fill them in. None if
        nothing is known beforehand.

    Example:
      >>> import numpy as np
      >>> import fedjax_opt as fo
      >>> data = fo.ClientData.from_arrays({"x": np.arange(5.0)}, client_ids=[0, 1, 0, 1, 1])
      >>> data.sizes.tolist(), data[1]["x"].tolist()
      ([2, 3], [1.0, 3.0, 4.0])
    """

    examples: Examples
    offsets: Values
    sizes: Values
    known: Sizes | None = None

    @classmethod
    def from_list(
        cls,
        clients: Sequence[Examples],
        *,
        padded: Callable[[Any], Examples] | None = None,
        allow_empty: bool = False,
    ) -> "ClientData":
        """From a sequence of clients, each a pytree of arrays with the examples on the first axis.

        Args:
          clients: one pytree per client, all of the same structure. A list is a pytree as well, whose
            entries are arrays of all examples; for lists of examples give `padded`.
          padded: a function of one example that returns arrays of the same shapes for each, such as a
            graph filled up to the largest. Each client is then a list of examples.
          allow_empty: accept clients without examples (for test sets; training refuses them).

        Example:
          >>> import numpy as np
          >>> import fedjax_opt as fo
          >>> fo.ClientData.from_list([{"x": np.zeros((2, 3))}, {"x": np.ones((1, 3))}]).num_examples
          3

          Sequences of any length:

          >>> def padded(sequence):
          ...     return {"x": np.pad(sequence, (0, 4 - len(sequence))), "length": len(sequence)}
          >>> data = fo.ClientData.from_list([[[5, 6], [7]], [[8, 9, 9]]], padded=padded)
          >>> data[0]["x"].tolist(), data[1]["length"].tolist()
          ([[5, 6, 0, 0], [7, 0, 0, 0]], [3])
        """
        if not clients:
            raise ValueError("clients must hold at least one client, got an empty sequence.")
        if padded is not None:
            clients = [_stacked(i, client, padded) for i, client in enumerate(clients)]
        sizes = []
        for i, client in enumerate(clients):
            if jax.tree.structure(client) != jax.tree.structure(clients[0]):
                raise ValueError(
                    f"clients[{i}] must have the tree structure of clients[0],"
                    f" {jax.tree.structure(clients[0])}, got {jax.tree.structure(client)}. Where each"
                    " client is a list of examples, give padded=, a function of one of them."
                )
            sizes.append(checks.leading_axes(f"clients[{i}]", client, (None,), "n")[0])
        try:
            examples = jax.tree.map(lambda *parts: np.concatenate(parts), *clients)
        except ValueError as error:
            raise ValueError(
                f"clients must agree in the shape of an example, but they do not: {error}."
            ) from error
        return cls.from_sizes(examples, sizes, allow_empty=allow_empty)

    @classmethod
    def from_arrays(
        cls,
        arrays: Examples,
        client_ids: Values,
        num_clients: int | None = None,
        *,
        allow_empty: bool = False,
    ) -> "ClientData":
        """From a flat data set and the client of each example.

        Args:
          arrays: a pytree of arrays `[total, ...]`.
          client_ids: int `[total]`, in 0 .. num_clients - 1.
          num_clients: N; by default the largest id plus one.
          allow_empty: accept ids that own nothing.
        """
        client_ids = np.asarray(client_ids)
        (total,) = checks.leading_axes("arrays", arrays, (None,), "n")
        if client_ids.shape != (total,) or not np.issubdtype(client_ids.dtype, np.integer):
            raise ValueError(
                f"client_ids must be {total} integers, one per example, got"
                f" {client_ids.dtype}{list(client_ids.shape)}."
            )
        if total == 0:
            raise ValueError("arrays must hold at least one example, got none.")
        count = int(client_ids.max()) + 1 if num_clients is None else num_clients
        checks.integer("num_clients", count, low=1)
        if client_ids.min() < 0 or client_ids.max() >= count:
            raise ValueError(
                f"client_ids must lie in [0, {count - 1}], got {client_ids.min()} to"
                f" {client_ids.max()}."
            )
        order = np.argsort(client_ids, kind="stable")
        examples = jax.tree.map(lambda x: np.asarray(x)[order], arrays)
        sizes = np.bincount(client_ids, minlength=count)
        return cls.from_sizes(examples, sizes, allow_empty=allow_empty)

    @classmethod
    def from_sizes(
        cls, examples: Examples, sizes: Values, *, allow_empty: bool = False
    ) -> "ClientData":
        """From examples that are grouped by client already; they are not copied.

        Args:
          examples: a pytree of arrays `[total, ...]`, those of client 0 first.
          sizes: int `[N]`, how many belong to each client.
          allow_empty: accept clients without examples.

        Example:
          >>> import numpy as np
          >>> import fedjax_opt as fo
          >>> fo.ClientData.from_sizes({"x": np.arange(5)}, sizes=[2, 3])[1]["x"].tolist()
          [2, 3, 4]
        """
        sizes = np.asarray(sizes)
        (total,) = checks.leading_axes("examples", examples, (None,), "n")
        if sizes.ndim != 1 or not np.issubdtype(sizes.dtype, np.integer) or sizes.min() < 0:
            raise ValueError(f"sizes must be whole numbers, one per client, got {sizes!r}.")
        if sizes.sum() != total:
            raise ValueError(f"sizes must sum to the {total} examples, got {sizes.sum()}.")
        empty = np.flatnonzero(sizes == 0)
        if len(empty) and not allow_empty:
            shown = ", ".join(map(str, empty[:5])) + (", ..." if len(empty) > 5 else "")
            raise ValueError(
                f"Every client must hold at least one example, but {len(empty)} of {len(sizes)} hold"
                f" none: {shown}. Leave them out, or pass allow_empty=True for a test set."
            )
        if total > np.iinfo(np.int32).max:
            raise ValueError(f"data must hold fewer than 2^31 examples, got {total}.")
        offsets = np.cumsum(sizes, dtype=np.int64) - sizes
        sizes = sizes.astype(np.int32)
        return cls(examples, offsets.astype(np.int32), sizes, Sizes.of(sizes))


class Files(Hashable, Protocol):
    """Where stored examples are: equal to another if what they hold is the same."""

    @property
    def arrays(self) -> dict[str, np.memmap]:
        """The examples, memory-mapped."""
        ...

    @property
    def checksum(self) -> int:
        """Of all that they hold, known without reading them."""
        ...


@struct("files", "known")
class StoredClients(_Clients):
    """Examples of all clients in files, as `fedjax_opt.data.open_stored` opens them.

    Only the sizes are arrays of a program: `simulate` reads what it needs, chunk by chunk. Otherwise it
    can be asked what a `ClientData` can be.

    Attributes:
      offsets: int32 `[N]`, each client's first row.
      sizes: int32 `[N]`, each client's number of rows.
      files: the files.
      known: as in `ClientData`.
    """

    offsets: Values
    sizes: Values
    files: Files
    known: Sizes | None = None

    @property
    def examples(self) -> dict[str, np.memmap]:
        """The examples, memory-mapped and read-only."""
        return self.files.arrays


def in_memory(clients: Examples) -> bool:
    """Whether examples are arrays in memory, and so may be an argument of a program."""
    if isinstance(clients, StoredClients):
        return False
    return not any(isinstance(leaf, np.memmap) for leaf in jax.tree.leaves(clients))


def check_in_memory(name: str, examples: Examples, purpose: str) -> None:
    """Refuses examples in files where all of them are needed on the device."""
    if not in_memory(examples):
        raise ValueError(
            f"{name} must be in memory {purpose}, but these examples are in files, of which simulate"
            " alone reads what it needs. To have all in memory, select all clients: clients[:]."
        )
