"""Runs driven from the host: progress, evaluation, extensions, checkpoints, going back."""

from fedjax_opt.training.checkpoints import Checkpoints as Checkpoints
from fedjax_opt.training.csv_log import csv_log as csv_log
from fedjax_opt.training.extensions import Chunk as Chunk
from fedjax_opt.training.extensions import Extension as Extension
from fedjax_opt.training.extensions import GoBack as GoBack
from fedjax_opt.training.extensions import RunFacts as RunFacts
from fedjax_opt.training.extensions import Stop as Stop
from fedjax_opt.training.history import NonFiniteLossError as NonFiniteLossError
from fedjax_opt.training.history import Result as Result
from fedjax_opt.training.interruption import Interrupted as Interrupted
from fedjax_opt.training.replay import Replay as Replay
from fedjax_opt.training.replay import replay as replay
from fedjax_opt.training.rollback import Rollback as Rollback
from fedjax_opt.training.simulate import simulate as simulate
from fedjax_opt.training.stopping import early_stopping as early_stopping
from fedjax_opt.training.stopping import stop_at as stop_at
