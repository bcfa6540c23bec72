"""What outgrows a device or a run: clients' states on the host or on disk, models in files."""

from fedjax_opt.storage.client_states import ClientStore as ClientStore
from fedjax_opt.storage.model_files import load_model as load_model
from fedjax_opt.storage.model_files import save_model as save_model
