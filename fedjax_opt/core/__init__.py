"""The contract of algorithms, models and states; depends on nothing else in this package."""

from fedjax_opt.core.algorithm import Algorithm as Algorithm
from fedjax_opt.core.algorithm import Coded as Coded
from fedjax_opt.core.algorithm import Context as Context
from fedjax_opt.core.algorithm import Facts as Facts
from fedjax_opt.core.algorithm import Kept as Kept
from fedjax_opt.core.algorithm import ProbeData as ProbeData
from fedjax_opt.core.algorithm import StaticInt as StaticInt
from fedjax_opt.core.algorithm import Uniform as Uniform
from fedjax_opt.core.algorithm import difference as difference
from fedjax_opt.core.algorithm import get_variables as get_variables
from fedjax_opt.core.algorithm import move as move
from fedjax_opt.core.algorithm import move_state as move_state
from fedjax_opt.core.algorithm import no_client_state as no_client_state
from fedjax_opt.core.algorithm import set_variables as set_variables
from fedjax_opt.core.algorithm import state_difference as state_difference
from fedjax_opt.core.info import Info as Info
from fedjax_opt.core.model import Aux as Aux
from fedjax_opt.core.model import Evaluation as Evaluation
from fedjax_opt.core.model import Model as Model
from fedjax_opt.core.model import Objective as Objective
from fedjax_opt.core.model import Variables as Variables
from fedjax_opt.core.state import FederatedState as FederatedState
from fedjax_opt.core.state import init_state as init_state
