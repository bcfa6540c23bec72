"""What to read off a finished run."""

from fedjax_opt.metrics.activations import ActivationShift as ActivationShift
from fedjax_opt.metrics.activations import BatchNorm as BatchNorm
from fedjax_opt.metrics.activations import activation_shift as activation_shift
from fedjax_opt.metrics.curves import last_mean as last_mean
from fedjax_opt.metrics.curves import rounds_to_target as rounds_to_target
from fedjax_opt.metrics.curves import share_diverged as share_diverged
from fedjax_opt.metrics.curves import smooth as smooth
from fedjax_opt.metrics.fine_tuning import fine_tuned as fine_tuned
from fedjax_opt.metrics.reuse import reuse_error as reuse_error
from fedjax_opt.metrics.user_accuracy import UserAccuracy as UserAccuracy
from fedjax_opt.metrics.user_accuracy import user_accuracy as user_accuracy
