"""What to read off a finished run."""

from fedjax_opt.metrics.curves import rounds_to_target as rounds_to_target
from fedjax_opt.metrics.curves import smooth as smooth
from fedjax_opt.metrics.fine_tuning import fine_tuned as fine_tuned
from fedjax_opt.metrics.user_accuracy import UserAccuracy as UserAccuracy
from fedjax_opt.metrics.user_accuracy import user_accuracy as user_accuracy
