"""What outgrows a device: clients' states on the host or on disk."""

from fedjax_opt.storage.client_states import ClientStore as ClientStore
