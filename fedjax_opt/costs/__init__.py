"""What a run costs: bytes, time, operations and energy, in a round and until a target is reached."""

from fedjax_opt.costs import testbeds as testbeds
from fedjax_opt.costs.operations import Flops as Flops
from fedjax_opt.costs.operations import client_flops as client_flops
from fedjax_opt.costs.operations import measured_flops as measured_flops
from fedjax_opt.costs.round_time import Devices as Devices
from fedjax_opt.costs.round_time import RoundTime as RoundTime
from fedjax_opt.costs.round_time import client_seconds as client_seconds
from fedjax_opt.costs.round_time import devices as devices
from fedjax_opt.costs.round_time import draw_devices as draw_devices
from fedjax_opt.costs.round_time import expected_maximum as expected_maximum
from fedjax_opt.costs.round_time import expected_round_seconds as expected_round_seconds
from fedjax_opt.costs.round_time import lognormal as lognormal
from fedjax_opt.costs.round_time import megabits as megabits
from fedjax_opt.costs.round_time import on_time as on_time
from fedjax_opt.costs.round_time import round_seconds as round_seconds
from fedjax_opt.costs.round_time import uniform as uniform
from fedjax_opt.costs.spending import EnergyRates as EnergyRates
from fedjax_opt.costs.spending import Prices as Prices
from fedjax_opt.costs.spending import Spent as Spent
from fedjax_opt.costs.spending import cost_to_target as cost_to_target
from fedjax_opt.costs.spending import spent as spent
from fedjax_opt.costs.testbeds import RoundParts as RoundParts
from fedjax_opt.costs.testbeds import round_parts as round_parts
from fedjax_opt.costs.traffic import Cost as Cost
from fedjax_opt.costs.traffic import of as of
