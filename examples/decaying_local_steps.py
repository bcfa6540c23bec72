"""Fewer and fewer local steps: what a falling K saves, on phones with links and speeds of their own.

Each client has a bandwidth and a speed, drawn once. A round takes as long as its slowest client. FedAvg
starts with K = 30 local steps; then K stays, falls with the rounds, or falls with the training loss.
How much time, traffic and computation does each need to reach an accuracy of 94%?

Run:  python examples/decaying_local_steps.py
"""

import jax

import fedjax_opt as fo

CLIENTS, COHORT, BATCH, ROUNDS, K, TARGET = 50, 5, 8, 200, 30, 0.94


def main():
    fo.use_cpu_devices()
    train, test = fo.data.load_digits()
    owners = fo.data.dirichlet(train["y"], CLIENTS, alpha=0.1)
    clients = fo.ClientData.from_arrays(train, owners, CLIENTS)
    model = fo.models.mlp([32], num_classes=10)
    digits = fo.Federation(model, clients, cohort=COHORT, batch_size=BATCH, test=test)
    algorithm = fo.fedavg(fo.optimizers.sgd(0.05))

    phones = fo.costs.draw_devices(
        jax.random.key(0), CLIENTS,
        download_mbps=fo.costs.lognormal(20.0, spread=1.5),
        upload_mbps=fo.costs.lognormal(5.0, spread=1.5),
        seconds_per_step=fo.costs.lognormal(0.005, spread=2.0),
    )  # fmt: skip
    batch = jax.tree.map(lambda x: x[:BATCH], train)
    variables = model.init(jax.random.key(0), batch)
    prices = fo.costs.Prices(
        traffic=fo.costs.of(algorithm, variables),
        flops=fo.costs.client_flops(algorithm, model, batch),
        devices=phones,
    )
    schedules = {
        "fixed": fo.controllers.constant(K),
        "by rounds": fo.controllers.steps_by_rounds(K),
        "by error": fo.controllers.steps_by_error(K, window=20),
    }
    print(f"                K   accuracy   until {TARGET:.0%}: rounds  seconds  MB up  GFLOPs")
    for name, local_steps in schedules.items():
        scheduled = digits.replace(local_steps=local_steps)
        result = fo.simulate(algorithm, scheduled, ROUNDS, evaluate_every=5)
        steps = result.history["num_steps"].max(axis=1)
        spent = fo.costs.cost_to_target(result, TARGET, prices)
        line = (
            f"{name:10} {steps[0]:3} to {steps[-1]:2}   {result.evaluations['accuracy'].max():8.1%}"
        )
        if spent is None:
            print(f"{line}   never")
            continue
        print(
            f"{line}   {spent.rounds:17}  {spent.seconds:7.1f}  {spent.bytes_up / 1e6:5.1f}"
            f"  {spent.flops / 1e9:6.2f}"
        )


if __name__ == "__main__":
    main()
