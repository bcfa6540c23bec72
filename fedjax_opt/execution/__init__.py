"""Where it is computed: over clients, devices and processes."""

from fedjax_opt.execution import distributed as distributed
from fedjax_opt.execution.client_table import ClientRows as ClientRows
from fedjax_opt.execution.devices import use_cpu_devices as use_cpu_devices
from fedjax_opt.execution.strategies import Strategy as Strategy
from fedjax_opt.execution.strategies import place as place
