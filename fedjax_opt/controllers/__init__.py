"""Controllers of local steps and of the learning rate, as pure values inside the compiled run."""

from fedjax_opt.controllers.by_theory import theory as theory
from fedjax_opt.controllers.schedules import Schedule as Schedule
from fedjax_opt.controllers.schedules import constant as constant
from fedjax_opt.controllers.schedules import paper_schedules as paper_schedules
from fedjax_opt.controllers.schedules import rate_by_error as rate_by_error
from fedjax_opt.controllers.schedules import rate_by_rounds as rate_by_rounds
from fedjax_opt.controllers.schedules import rate_exponential as rate_exponential
from fedjax_opt.controllers.schedules import rate_on_plateau as rate_on_plateau
from fedjax_opt.controllers.schedules import steps_by_error as steps_by_error
from fedjax_opt.controllers.schedules import steps_by_rounds as steps_by_rounds
from fedjax_opt.controllers.schedules import steps_on_plateau as steps_on_plateau
