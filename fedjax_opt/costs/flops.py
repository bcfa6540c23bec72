"""Operations of a client in a round, by the formula of the FedGBO paper.

    N = n (fwd + bwd) + K (B (fwd + bwd) + C |x|)                                              (22)

with B the minibatch, (fwd + bwd) the operations of both passes for one sample, C the operations per
parameter of a local step (Table 6), |x| the number of parameters. n, the client's samples, is there for
MimeLite's full-batch gradient alone.

Errata. (22) prints MimeLite's n (fwd + bwd) inside of K(...); Tables 7 and 8 have it once. Table 6 and
the text disagree: RMSProp 5 fixed and 5 moving against 5 and 8, SGDm 5 and 8 against 4 and 4; Tables 7
and 8 were made with Table 6. What they print as FLOPs are multiply-adds, one operation each, three times
those of the forward pass (as the counter that the paper cites has them, with a convolution's bias as one
more of its inputs): about half of what `measured_flops` counts. So taken, 86 of their 88 cells follow to
the last digit. Two do not: MimeLite with RMSProp and with SGDm, Sent140, K = 10, have 0.0350 for 0.0335.

Reference:
  Mills, Hu, Min, Jin, Zheng, Wang. Accelerating federated learning with a global biased optimiser.
  IEEE Transactions on Computers, 2022. Appendix B.
"""

from typing import Any, NamedTuple

from fedjax_opt.core import checks


class Flops(NamedTuple):
    """The operations of a client in a round, and of the server.

    Attributes:
      step: one local step: the gradient of a minibatch and its update.
      probe: before local work begins: MimeLite's and Mime's full-batch gradient.
      start: from the message to the local state.
      finish: from the local state to the upload.
      server: the server's step, once in a round; the sum of the uploads is not in it.
    """

    step: Any
    probe: Any = 0.0
    start: Any = 0.0
    finish: Any = 0.0
    server: Any = 0.0

    def client(self, num_steps: Any) -> Any:
        """A client's operations in a round of K local steps; K is a number or an array."""
        return self.probe + self.start + num_steps * self.step + self.finish


class FlopsTask(NamedTuple):
    """A task of the FedGBO paper.

    Attributes:
      name: the task's name.
      model: the kind of its model.
      num_parameters: |x|.
      multiply_adds: of a forward pass of one sample.
      batch_size: B.
      samples_per_client: n, the mean number of training samples.
      num_clients: N.
      cohort_size: S.
    """

    name: str
    model: str
    num_parameters: int
    multiply_adds: int
    batch_size: int
    samples_per_client: int
    num_clients: int
    cohort_size: int

    @property
    def pass_flops(self) -> int:
        """(fwd + bwd) of one sample as the paper counts: a backward pass is two forward passes."""
        return 3 * self.multiply_adds


def _dense(inputs, outputs):
    """Parameters and multiply-adds; the bias is a part of the last addition."""
    return (inputs + 1) * outputs, inputs * outputs


def _conv(inputs, outputs, side):
    """3x3, unpadded, with outputs of side x side; the bias counts as one more input."""
    parameters = (9 * inputs + 1) * outputs
    return parameters, parameters * side**2


def _gru(inputs, hidden, length):
    """Three gates with two biases each, and 13 elementwise operations per unit and step."""
    weights = 3 * hidden * (inputs + hidden)
    return weights + 6 * hidden, (weights + 13 * hidden) * length


def _task(name, model, layers, *rest):
    return FlopsTask(name, model, sum(x for x, _ in layers), sum(x for _, x in layers), *rest)


# A 32x32 image is 30x30 after the first convolution, 15x15 pooled, 13x13 after the second, 6x6 pooled;
# one of 28x28 is 26x26, 13x13, 11x11, 5x5.
_CIFAR100 = (_conv(3, 32, 30), _conv(32, 64, 13), _dense(64 * 6 * 6, 512), _dense(512, 100))
_FEMNIST = (_conv(1, 32, 26), _conv(32, 64, 11), _dense(64 * 5 * 5, 512), _dense(512, 62))
# 80 characters, of which the last one's output is read; an embedding looks up and computes nothing.
_SHAKESPEARE = ((79 * 8, 0), _gru(8, 128, 80), _gru(128, 128, 80), _dense(128, 79))

_TASKS = {
    task.name: task
    for task in (
        _task("CIFAR100", "CNN", _CIFAR100, 32, 100, 500, 5),
        _task("Sent140", "linear", (_dense(5000, 2),), 8, 15, 21876, 22),
        _task("FEMNIST", "CNN", _FEMNIST, 32, 170, 3000, 30),
        _task("Shakespeare", "GRU", _SHAKESPEARE, 32, 5573, 660, 7),
    )
}

_PLAIN = {"fedavg": 2, "dsgd": 2, "fedmax": 2, "adaptive_fedopt": 2, "fedprox": 5}
_FIXED, _MOVING = ("fedgbo", "mimelite", "mimexlite"), ("mfl",)
# Per parameter and step: with fixed statistics, with statistics that move.
_OPERATIONS = {
    "table": {"rmsprop": (5, 5), "sgdm": (5, 8), "adam": (8, 11)},
    "text": {"rmsprop": (5, 8), "sgdm": (4, 4)},
}


def step_operations(algorithm: str, optimizer: str = "sgd", source: str = "table") -> int:
    """C: the operations per parameter of a local update, as the FedGBO paper counts them.

    Args:
      algorithm: 'fedavg', 'dsgd', 'fedmax', 'adaptive_fedopt', 'fedprox', which take plain steps; or
        'fedgbo', 'mimelite', 'mimexlite' (fixed statistics), 'mfl' (moving ones).
      optimizer: 'sgd' for the former; 'rmsprop', 'sgdm' or 'adam' for the latter.
      source: 'table' for Table 6, with which the paper's tables were made; 'text' for what the
        appendix says, which differs for RMSProp and SGDm and is silent on Adam.

    Returns:
      C.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.costs.step_operations("fedgbo", "adam"), fo.costs.step_operations("fedprox")
      (8, 5)

    Reference:
      Mills et al. Accelerating federated learning with a global biased optimiser. 2022. Table 6.
    """
    checks.choice("algorithm", algorithm, (*_PLAIN, *_FIXED, *_MOVING))
    operations = _OPERATIONS[checks.choice("source", source, tuple(_OPERATIONS))]
    if algorithm in _PLAIN:
        checks.choice(f"optimizer of {algorithm}", optimizer, ("sgd",))
        return _PLAIN[algorithm]
    checks.choice(f"optimizer of {algorithm} by the {source}", optimizer, tuple(operations))
    return operations[optimizer][algorithm in _MOVING]


def formula_flops(
    batch_size: Any,
    pass_flops: Any,
    num_parameters: Any,
    operations: Any = 2,
    probe_samples: Any = 0,
    printed: bool = False,
) -> Flops:
    """Equation (22) of the FedGBO paper, for any model.

    Args:
      batch_size: B.
      pass_flops: (fwd + bwd), the operations of both passes for one sample; `sum(pass_flops(...))`
        measures them.
      num_parameters: |x|.
      operations: C, per parameter and step; see `step_operations`.
      probe_samples: n, the samples of a full-batch gradient before local work; 0 for none.
      printed: whether to take that gradient in every step, as (22) is printed.

    Returns:
      `Flops`, of which `client(K)` is N.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.costs.formula_flops(8, 30_000, 10_002, operations=2).client(10)
      2600040.0

    Reference:
      Mills et al. Accelerating federated learning with a global biased optimiser. 2022. Equation (22).
    """
    given = {
        "batch_size": batch_size,
        "pass_flops": pass_flops,
        "num_parameters": num_parameters,
        "operations": operations,
        "probe_samples": probe_samples,
    }
    b, passes, size, per_parameter, n = (
        checks.number(name, value, low=0.0, open_high=True) for name, value in given.items()
    )
    step, probe = b * passes + per_parameter * size, n * passes
    return Flops(step + probe) if printed else Flops(step, probe)


def flops_task(name: str) -> FlopsTask:
    """One task of the FedGBO paper: its model's size and operations, its clients.

    Args:
      name: 'CIFAR100', 'Sent140', 'FEMNIST' or 'Shakespeare'.

    Returns:
      A `FlopsTask`.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.costs.flops_task("CIFAR100").num_parameters
      1250852

    Reference:
      Mills et al. Accelerating federated learning with a global biased optimiser. 2022. Table 3.
    """
    return _TASKS[checks.choice("name", name, tuple(_TASKS))]


def flops_tasks() -> dict[str, FlopsTask]:
    """All four tasks of the FedGBO paper, by name.

    Example:
      >>> import fedjax_opt as fo
      >>> list(fo.costs.flops_tasks())
      ['CIFAR100', 'Sent140', 'FEMNIST', 'Shakespeare']
    """
    return dict(_TASKS)


def paper_flops(task: str, algorithm: str, optimizer: str = "sgd", source: str = "table") -> Flops:
    """The operations behind Tables 7 and 8 of the FedGBO paper.

    Args:
      task: 'CIFAR100', 'Sent140', 'FEMNIST' or 'Shakespeare'.
      algorithm: as for `step_operations`.
      optimizer: as for `step_operations`.
      source: as for `step_operations`.

    Returns:
      `Flops`, of which `client(K)` is the table's entry.

    Example:
      The first entry of Table 7, in units of 10^8:

      >>> import fedjax_opt as fo
      >>> f"{fo.costs.paper_flops('CIFAR100', 'fedgbo', 'rmsprop').client(10) / 1e8:.3g}"
      '50.2'

    Reference:
      Mills et al. Accelerating federated learning with a global biased optimiser. 2022. Tables 7, 8.
    """
    of = flops_task(task)
    operations = step_operations(algorithm, optimizer, source)
    # The paper counts MimeXlite as FedGBO: its one minibatch's gradient at x is the first step's.
    samples = of.samples_per_client if algorithm == "mimelite" else 0
    return formula_flops(of.batch_size, of.pass_flops, of.num_parameters, operations, samples)
