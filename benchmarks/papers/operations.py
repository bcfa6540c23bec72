"""Tables 3, 6, 7 and 8 of the FedGBO paper: the operations of a client in a round, by its formula.

    N = n (fwd + bwd) + K (B (fwd + bwd) + C |x|)                                              (22)

with B the minibatch, (fwd + bwd) the operations of both passes for one sample, C the operations per
parameter of a local step (Table 6), |x| the number of parameters. n, the client's samples, is there for
MimeLite's full-batch gradient alone.

Errata. (22) prints MimeLite's n (fwd + bwd) inside of K(...); Tables 7 and 8 have it once. Table 6 and
the text disagree: RMSProp 5 fixed and 5 moving against 5 and 8, SGDm 5 and 8 against 4 and 4; Tables 7
and 8 were made with Table 6. What they print as FLOPs are multiply-adds, one operation each, three times
those of the forward pass (as the counter that the paper cites has them, with a convolution's bias as one
more of its inputs): about half of what `fo.costs.measured_flops` counts. So taken, 86 of their 88 cells
follow to the last digit. Two do not: MimeLite with RMSProp and with SGDm, Sent140, K = 10, have 0.0350
for 0.0335.

Reference:
  Mills, Hu, Min, Jin, Zheng, Wang. Accelerating federated learning with a global biased optimiser.
  IEEE Transactions on Computers, 2022. Appendix B.
"""

from typing import NamedTuple

from fedjax_opt.costs import Flops


class FlopsTask(NamedTuple):
    """A row of Table 3, with the parameters and the multiply-adds of a sample's forward pass."""

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


def _task(layers, *rest):
    return FlopsTask(sum(x for x, _ in layers), sum(x for _, x in layers), *rest)


# A 32x32 image is 30x30 after the first convolution, 15x15 pooled, 13x13 after the second, 6x6 pooled;
# one of 28x28 is 26x26, 13x13, 11x11, 5x5.
_CIFAR100 = (_conv(3, 32, 30), _conv(32, 64, 13), _dense(64 * 6 * 6, 512), _dense(512, 100))
_FEMNIST = (_conv(1, 32, 26), _conv(32, 64, 11), _dense(64 * 5 * 5, 512), _dense(512, 62))
# 80 characters, of which the last one's output is read; an embedding looks up and computes nothing.
_SHAKESPEARE = ((79 * 8, 0), _gru(8, 128, 80), _gru(128, 128, 80), _dense(128, 79))

TASKS = {
    "CIFAR100": _task(_CIFAR100, 32, 100, 500, 5),
    "Sent140": _task((_dense(5000, 2),), 8, 15, 21876, 22),
    "FEMNIST": _task(_FEMNIST, 32, 170, 3000, 30),
    "Shakespeare": _task(_SHAKESPEARE, 32, 5573, 660, 7),
}

_PLAIN = {"fedavg": 2, "dsgd": 2, "fedmax": 2, "adaptive_fedopt": 2, "fedprox": 5}
# Per parameter and step: with fixed statistics, with statistics that move.
_OPERATIONS = {
    "table": {"rmsprop": (5, 5), "sgdm": (5, 8), "adam": (8, 11)},
    "text": {"rmsprop": (5, 8), "sgdm": (4, 4)},
}


def step_operations(algorithm: str, optimizer: str = "sgd", source: str = "table") -> int:
    """C: the operations per parameter of a local update, by Table 6 or by the text."""
    if algorithm in _PLAIN:
        return _PLAIN[algorithm]
    return _OPERATIONS[source][optimizer][algorithm == "mfl"]


def formula_flops(
    batch_size: float,
    pass_flops: float,
    num_parameters: int,
    operations: int = 2,
    probe_samples: int = 0,
    printed: bool = False,
) -> Flops:
    """Equation (22): `client(K)` is N. As printed the full-batch gradient is taken in every step."""
    step = batch_size * pass_flops + operations * num_parameters
    probe = probe_samples * pass_flops
    return Flops(step + probe) if printed else Flops(step, probe)


def paper_flops(task: str, algorithm: str, optimizer: str = "sgd", source: str = "table") -> Flops:
    """The operations behind Tables 7 and 8, of which `client(K)` is the table's entry."""
    of = TASKS[task]
    # The paper counts MimeXlite as FedGBO: its one minibatch's gradient at x is the first step's.
    samples = of.samples_per_client if algorithm == "mimelite" else 0
    operations = step_operations(algorithm, optimizer, source)
    return formula_flops(of.batch_size, of.pass_flops, of.num_parameters, operations, samples)
