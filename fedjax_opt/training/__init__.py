"""Runs driven from the host: progress, evaluation, checkpoints, going back."""

from fedjax_opt.training.callbacks import Event as Event
from fedjax_opt.training.callbacks import early_stopping as early_stopping
from fedjax_opt.training.callbacks import stop_at as stop_at
from fedjax_opt.training.checkpoints import Checkpoints as Checkpoints
from fedjax_opt.training.debugging import DebugError as DebugError
from fedjax_opt.training.keeping import Interrupted as Interrupted
from fedjax_opt.training.replaying import Replay as Replay
from fedjax_opt.training.replaying import replay as replay
from fedjax_opt.training.result import NonFiniteLossError as NonFiniteLossError
from fedjax_opt.training.result import Result as Result
from fedjax_opt.training.rollback import Rollback as Rollback
from fedjax_opt.training.simulate import simulate as simulate
