"""PyTorch's worker: a FedAvg loop written for speed, in one process or in one per core.

One process uses all threads for one client after the other. With --processes, each of as many
processes as there are cores has one thread and its share of the clients; the global parameters and
the processes' sums are in shared memory, and a pipe to each of them says when.
"""

import contextlib
import os
import platform
import time
from importlib.metadata import version

import common
import torch
import torch.nn.functional as F

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class MLP(torch.nn.Module):
    def __init__(self, params):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(*params[f"w{i}"].shape) for i in range(len(params) // 2)
        )

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(F.relu(x) if i else x)
        return x


class CNN(torch.nn.Module):
    """Channels last, which is PyTorch's faster layout here and that of the data."""

    def __init__(self, params):
        super().__init__()
        shapes = [params[f"w{i}"].shape for i in range(len(params) // 2)]
        self.layers = torch.nn.ModuleList(
            torch.nn.Conv2d(shape[2], shape[3], 3, padding=1)
            if len(shape) == 4
            else torch.nn.Linear(*shape)
            for shape in shapes
        )

    def forward(self, x):
        first, second, hidden, last = self.layers
        x = F.max_pool2d(F.relu(first(x.permute(0, 3, 1, 2))), 2)
        x = F.max_pool2d(F.relu(second(x)), 2)
        x = x.permute(0, 2, 3, 1).flatten(1)
        return last(F.relu(hidden(x)))


class GRU(torch.nn.Module):
    def __init__(self, params):
        super().__init__()
        self.embedding = torch.nn.Embedding(*params["embedding"].shape)
        self.gru = torch.nn.GRU(common.EMBEDDING, common.HIDDEN, 2, batch_first=True)
        self.last = torch.nn.Linear(*params["w"].shape)

    def forward(self, x):
        return self.last(self.gru(self.embedding(x))[0])


def places(model, params):
    """For each shared parameter, the module's own tensor seen in the shared shape."""
    if isinstance(model, GRU):
        found = {"embedding": model.embedding.weight.data}
        for i in range(2):
            found[f"input_kernel{i}"] = getattr(model.gru, f"weight_ih_l{i}").data.T
            found[f"input_bias{i}"] = getattr(model.gru, f"bias_ih_l{i}").data
            found[f"recurrent_kernel{i}"] = getattr(model.gru, f"weight_hh_l{i}").data.T
            found[f"recurrent_bias{i}"] = getattr(model.gru, f"bias_hh_l{i}").data
        return found | {"w": model.last.weight.data.T, "b": model.last.bias.data}
    found = {}
    for i, layer in enumerate(model.layers):
        weight = layer.weight.data
        found[f"w{i}"] = weight.permute(2, 3, 1, 0) if weight.ndim == 4 else weight.T
        found[f"b{i}"] = layer.bias.data
    return {name: found[name] for name in params}


class Trainer:
    """A model, the data of some clients, and their local steps."""

    def __init__(self, task, members):
        params = common.first_params(task)
        self.task = task
        self.model = {"mlp": MLP, "cnn": CNN, "gru": GRU}[task.model](params)
        if task.model == "cnn":
            self.model = self.model.to(memory_format=torch.channels_last)
        self.params = list(self.model.parameters())
        self.values = [p.data for p in self.params]
        with torch.no_grad():
            for name, place in places(self.model, params).items():
                place.copy_(torch.from_numpy(params[name]))
        data = common.client_data(task)
        self.clients = [
            (torch.from_numpy(data[i]["x"]), torch.from_numpy(data[i]["y"]).long()) for i in members
        ]

    def train(self, start, total):
        """The local steps of all clients from the parameters `start`, their results added to `total`."""
        task = self.task
        torch._foreach_zero_(total)
        for x, y in self.clients:
            torch._foreach_copy_(self.values, start)
            for step in range(task.local_steps):
                place = step * task.batch % task.examples
                if place == 0:
                    order = torch.randperm(task.examples)
                rows = order[place : place + task.batch]
                logits = self.model(x[rows])
                loss = F.cross_entropy(logits.flatten(0, -2), y[rows].flatten())
                gradients = torch.autograd.grad(loss, self.params)
                torch._foreach_add_(self.values, gradients, alpha=-task.learning_rate)
            torch._foreach_add_(total, self.values)

    def shared_shapes(self, values):
        torch._foreach_copy_(self.values, values)
        found = places(self.model, common.first_params(self.task))
        return {name: place.numpy() for name, place in found.items()}


def child(pipe, task, members, start, total):
    """A process of its own: one thread, some of the clients."""
    torch.set_num_threads(1)
    torch.manual_seed(members[0])
    trainer = Trainer(task, members)
    pipe.send("ready")
    with contextlib.suppress(EOFError):  # which is the end
        while pipe.recv() == "run":
            trainer.train(start, total)
            pipe.send(common.peak_mib())


def one_process(task):
    torch.set_num_threads(CORES)
    torch.manual_seed(0)
    trainer = Trainer(task, range(task.clients))
    values = [v.clone() for v in trainer.values]
    total = [torch.zeros_like(v) for v in values]

    def play():
        trainer.train(values, total)
        torch._foreach_copy_(values, total)
        torch._foreach_mul_(values, 1 / task.clients)
        return common.peak_mib()

    return trainer, values, play


def process_per_core(task):
    torch.set_num_threads(1)
    trainer = Trainer(task, [])
    values = [v.clone().share_memory_() for v in trainer.values]
    context = torch.multiprocessing.get_context("spawn")
    pipes, totals = [], []
    for first in range(min(CORES, task.clients)):
        pipe, theirs = context.Pipe()
        total = [torch.zeros_like(v).share_memory_() for v in values]
        members = range(first, task.clients, CORES)
        context.Process(
            target=child, args=(theirs, task, members, values, total), daemon=True
        ).start()
        pipes.append(pipe)
        totals.append(total)
    for pipe in pipes:
        pipe.recv()

    def play():
        for pipe in pipes:
            pipe.send("run")
        peaks = [pipe.recv() for pipe in pipes]
        torch._foreach_copy_(values, totals[0])
        for total in totals[1:]:
            torch._foreach_add_(values, total)
        torch._foreach_mul_(values, 1 / task.clients)
        return common.peak_mib() + sum(peaks)

    return trainer, values, play


def main():
    parser = common.worker_parser(__doc__)
    parser.add_argument("--processes", action="store_true", help="one process per core")
    args = parser.parse_args()

    def setup():
        task = common.TASKS[args.task]
        data = common.client_data(task)
        make = process_per_core if args.processes else one_process
        trainer, values, play = make(task)

        def loss():
            return common.train_loss(task, trainer.shared_shapes(values), data)

        def run():
            start = time.perf_counter()
            for _ in range(args.rounds):
                peak = play()
            seconds = time.perf_counter() - start
            return {"seconds": seconds, "loss": loss(), "peak_mib": peak}

        first_loss = loss()
        first_run = run()
        run()
        return {
            "compile_seconds": first_run["seconds"],
            "first_loss": first_loss,
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "numpy": version("numpy"),
            },
        }, run

    common.serve(setup)


if __name__ == "__main__":
    main()
