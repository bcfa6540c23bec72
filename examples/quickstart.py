"""From nothing to a trained model in ten lines: FedGBO with Adam on handwritten digits.

Fifty clients share the training digits, unevenly; ten of them train in each round.

Run:  python examples/quickstart.py
"""

import fedjax_opt as fo

train, test = fo.data.load_digits()
owners = fo.data.dirichlet(train["y"], num_clients=50, alpha=0.1)
clients = fo.ClientData.from_arrays(train, owners)
model = fo.models.mlp([32], num_classes=10)
digits = fo.Federation(model, clients, cohort=10, local_steps=10, batch_size=8, test=test)
algorithm = fo.fedgbo(fo.optimizers.adam(0.1))
result = fo.simulate(algorithm, digits, 100)
print(f"{clients.summary()}; {len(test['y'])} test examples")
for done, accuracy in zip(result.evaluations["round"], result.evaluations["accuracy"], strict=True):
    print(f"after round {done:3}: test accuracy {accuracy:.1%}")
