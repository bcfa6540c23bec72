"""What an algorithm costs; derived from its functions, never declared."""

from fedjax_opt.costs.communication import Cost as Cost
from fedjax_opt.costs.communication import of as of
