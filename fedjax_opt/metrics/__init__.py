"""What to read off a finished run."""

from fedjax_opt.metrics.curves import rounds_to_target as rounds_to_target
from fedjax_opt.metrics.curves import smooth as smooth
