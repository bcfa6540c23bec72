"""fedjax_opt: federated optimisation in JAX, as small pure values that compose and compile."""

# ruff: noqa: E402 -- a JAX that computes wrong numbers is refused before anything is imported.
from fedjax_opt.core.compatibility import check_jax_version as _check_jax_version

_check_jax_version()

from fedjax_opt import bounds as bounds
from fedjax_opt import compression as compression
from fedjax_opt import controllers as controllers
from fedjax_opt import costs as costs
from fedjax_opt import data as data
from fedjax_opt import experiments as experiments
from fedjax_opt import metrics as metrics
from fedjax_opt import models as models
from fedjax_opt import optimizers as optimizers
from fedjax_opt import planning as planning
from fedjax_opt import tasks as tasks
from fedjax_opt.algorithms import *  # noqa: F403 -- one list of them is enough
from fedjax_opt.core import Algorithm as Algorithm
from fedjax_opt.core import Aux as Aux
from fedjax_opt.core import ClientData as ClientData
from fedjax_opt.core import Context as Context
from fedjax_opt.core import Controller as Controller
from fedjax_opt.core import Facts as Facts
from fedjax_opt.core import Fault as Fault
from fedjax_opt.core import Faults as Faults
from fedjax_opt.core import FederatedState as FederatedState
from fedjax_opt.core import Federation as Federation
from fedjax_opt.core import Guard as Guard
from fedjax_opt.core import Info as Info
from fedjax_opt.core import Model as Model
from fedjax_opt.core import Sampler as Sampler
from fedjax_opt.core import StoredClients as StoredClients
from fedjax_opt.core import Uniform as Uniform
from fedjax_opt.core import Variables as Variables
from fedjax_opt.core import epochs as epochs
from fedjax_opt.core import first_state as first_state
from fedjax_opt.core import init_state as init_state
from fedjax_opt.core import scheduled as scheduled
from fedjax_opt.engine import Run as Run
from fedjax_opt.engine import cohorts as cohorts
from fedjax_opt.engine import evaluate as evaluate
from fedjax_opt.engine import evaluate_clients as evaluate_clients
from fedjax_opt.engine import make_round as make_round
from fedjax_opt.engine import personal_variables as personal_variables
from fedjax_opt.engine import run_rounds as run_rounds
from fedjax_opt.execution import ClientRows as ClientRows
from fedjax_opt.execution import Strategy as Strategy
from fedjax_opt.execution import distributed as distributed
from fedjax_opt.execution import place as place
from fedjax_opt.execution import use_cpu_devices as use_cpu_devices
from fedjax_opt.planning import plan as plan
from fedjax_opt.storage import ClientStore as ClientStore
from fedjax_opt.training import Checkpoints as Checkpoints
from fedjax_opt.training import Chunk as Chunk
from fedjax_opt.training import DebugError as DebugError
from fedjax_opt.training import Extension as Extension
from fedjax_opt.training import GoBack as GoBack
from fedjax_opt.training import Interrupted as Interrupted
from fedjax_opt.training import NonFiniteLossError as NonFiniteLossError
from fedjax_opt.training import Replay as Replay
from fedjax_opt.training import Result as Result
from fedjax_opt.training import Rollback as Rollback
from fedjax_opt.training import RunFacts as RunFacts
from fedjax_opt.training import Stop as Stop
from fedjax_opt.training import early_stopping as early_stopping
from fedjax_opt.training import replay as replay
from fedjax_opt.training import simulate as simulate
from fedjax_opt.training import stop_at as stop_at
from fedjax_opt.wrappers import aggregated as aggregated
from fedjax_opt.wrappers import aggregators as aggregators
from fedjax_opt.wrappers import attacks as attacks
from fedjax_opt.wrappers import clipped as clipped
from fedjax_opt.wrappers import compressed as compressed
from fedjax_opt.wrappers import contrastive as contrastive
from fedjax_opt.wrappers import max_entropy as max_entropy
from fedjax_opt.wrappers import private as private
from fedjax_opt.wrappers import proximal as proximal
from fedjax_opt.wrappers import server_optimizer as server_optimizer
from fedjax_opt.wrappers import weight_decay as weight_decay

__version__ = "0.1.0"
