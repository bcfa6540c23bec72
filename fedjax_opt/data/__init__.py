"""Federated data: where examples live, how they are split, and problems that ship with the package."""

from fedjax_opt.data.client_data import ClientData as ClientData
from fedjax_opt.data.client_data import Summary as Summary
from fedjax_opt.data.digits import load_digits as load_digits
from fedjax_opt.data.noise import with_noise as with_noise
from fedjax_opt.data.partition import dirichlet as dirichlet
from fedjax_opt.data.partition import iid as iid
from fedjax_opt.data.partition import label_shards as label_shards
from fedjax_opt.data.storage import collect as collect
from fedjax_opt.data.storage import open_stored as open_stored
from fedjax_opt.data.storage import store as store
from fedjax_opt.data.storage import stored_names as stored_names
from fedjax_opt.data.synthetic import quadratics as quadratics
