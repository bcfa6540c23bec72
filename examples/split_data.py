"""Six ways to split the same digits among thirty clients, side by side in one figure.

From identical clients to one digit each, and from equal sizes to a few clients that hold nearly all.
The number that each panel names, the label skew, is the mean total variation distance between a client's
digits and everybody's: the more of it, the more local training pulls clients apart.

Run:  python examples/split_data.py            (writes split_data.png)
      python examples/split_data.py other.png
"""

import sys

from matplotlib.figure import Figure

import fedjax_opt as fo

CLIENTS = 30
train, _ = fo.data.load_digits()
digits = train["y"]
splits = {
    "iid": fo.data.iid(digits, CLIENTS),
    "quantity_skew, power=1": fo.data.quantity_skew(digits, CLIENTS, power=1.0),
    "dirichlet, alpha=0.3": fo.data.dirichlet(digits, CLIENTS, alpha=0.3),
    "balanced_dirichlet, alpha=0.3": fo.data.balanced_dirichlet(digits, CLIENTS, alpha=0.3),
    "label_shards, 2 each": fo.data.label_shards(digits, CLIENTS, shards_per_client=2),
    # A hierarchy of digits, for want of a better one: 0 and 1, 2 and 3, ...
    "pachinko, 0.1 and 10": fo.data.pachinko(digits // 2, digits, CLIENTS),
}

figure = Figure(figsize=(13.5, 6.6), layout="constrained")
axes = figure.subplots(2, 3).ravel()
for axis, (name, ids) in zip(axes, splits.items(), strict=True):
    fo.data.plot_split(digits, ids, axis=axis, title=name)
    print(f"{name:30} {fo.ClientData.from_arrays(train, ids).summary()}")
for axis in axes[::3]:
    axis.set_ylabel("examples")
for axis in axes[3:]:
    axis.set_xlabel("clients")
handles, names = axes[0].get_legend_handles_labels()
figure.legend(handles[::-1], names[::-1], title="digit", loc="outside right center", frameon=False)
path = sys.argv[1] if len(sys.argv) > 1 else "split_data.png"
figure.savefig(path, dpi=130)
print(f"Saved {path}.")
