"""fedjax_opt: federated optimisation in JAX, as small pure values that compose and compile."""

# ruff: noqa: E402 -- a JAX that computes wrong numbers is refused before anything is imported.
from fedjax_opt.core.compatibility import check_jax_version as _check_jax_version

_check_jax_version()

from fedjax_opt import bounds as bounds
from fedjax_opt import controllers as controllers
from fedjax_opt import costs as costs
from fedjax_opt import data as data
from fedjax_opt import metrics as metrics
from fedjax_opt import models as models
from fedjax_opt import optimizers as optimizers
from fedjax_opt import planning as planning
from fedjax_opt.algorithms import adabest as adabest
from fedjax_opt.algorithms import adaptive_fedopt as adaptive_fedopt
from fedjax_opt.algorithms import dsgd as dsgd
from fedjax_opt.algorithms import fedacg as fedacg
from fedjax_opt.algorithms import fedadagrad as fedadagrad
from fedjax_opt.algorithms import fedadam as fedadam
from fedjax_opt.algorithms import fedadc as fedadc
from fedjax_opt.algorithms import fedavg as fedavg
from fedjax_opt.algorithms import fedavgm as fedavgm
from fedjax_opt.algorithms import fedcm as fedcm
from fedjax_opt.algorithms import feddc as feddc
from fedjax_opt.algorithms import feddyn as feddyn
from fedjax_opt.algorithms import fedgbo as fedgbo
from fedjax_opt.algorithms import fedhbm as fedhbm
from fedjax_opt.algorithms import fedmax as fedmax
from fedjax_opt.algorithms import fedprox as fedprox
from fedjax_opt.algorithms import fedyogi as fedyogi
from fedjax_opt.algorithms import ghbm as ghbm
from fedjax_opt.algorithms import ghbm_server as ghbm_server
from fedjax_opt.algorithms import ghbm_theory as ghbm_theory
from fedjax_opt.algorithms import localghbm as localghbm
from fedjax_opt.algorithms import mfl as mfl
from fedjax_opt.algorithms import mime as mime
from fedjax_opt.algorithms import mimelite as mimelite
from fedjax_opt.algorithms import mimemom as mimemom
from fedjax_opt.algorithms import mimexlite as mimexlite
from fedjax_opt.algorithms import moon as moon
from fedjax_opt.algorithms import scaffold as scaffold
from fedjax_opt.algorithms import scaffold_m as scaffold_m
from fedjax_opt.core import Algorithm as Algorithm
from fedjax_opt.core import Aux as Aux
from fedjax_opt.core import Checkpoints as Checkpoints
from fedjax_opt.core import Context as Context
from fedjax_opt.core import Controller as Controller
from fedjax_opt.core import Event as Event
from fedjax_opt.core import Facts as Facts
from fedjax_opt.core import FederatedState as FederatedState
from fedjax_opt.core import Info as Info
from fedjax_opt.core import Model as Model
from fedjax_opt.core import NonFiniteLossError as NonFiniteLossError
from fedjax_opt.core import Result as Result
from fedjax_opt.core import Run as Run
from fedjax_opt.core import Sampler as Sampler
from fedjax_opt.core import Strategy as Strategy
from fedjax_opt.core import Uniform as Uniform
from fedjax_opt.core import Variables as Variables
from fedjax_opt.core import cohorts as cohorts
from fedjax_opt.core import early_stopping as early_stopping
from fedjax_opt.core import evaluate as evaluate
from fedjax_opt.core import evaluate_clients as evaluate_clients
from fedjax_opt.core import init_state as init_state
from fedjax_opt.core import make_round as make_round
from fedjax_opt.core import personal_variables as personal_variables
from fedjax_opt.core import place as place
from fedjax_opt.core import run_rounds as run_rounds
from fedjax_opt.core import simulate as simulate
from fedjax_opt.core import stop_at as stop_at
from fedjax_opt.core import use_cpu_devices as use_cpu_devices
from fedjax_opt.core import with_controllers as with_controllers
from fedjax_opt.data import ClientData as ClientData
from fedjax_opt.planning import plan as plan
from fedjax_opt.wrappers import aggregated as aggregated
from fedjax_opt.wrappers import aggregators as aggregators
from fedjax_opt.wrappers import clipped as clipped
from fedjax_opt.wrappers import contrastive as contrastive
from fedjax_opt.wrappers import max_entropy as max_entropy
from fedjax_opt.wrappers import private as private
from fedjax_opt.wrappers import proximal as proximal
from fedjax_opt.wrappers import server_optimizer as server_optimizer
from fedjax_opt.wrappers import weight_decay as weight_decay

__version__ = "0.1.0"
