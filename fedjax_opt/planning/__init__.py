"""From a model, its links and devices, to how to train it, how long it takes and what it sends."""

from fedjax_opt.planning.candidates import CohortChoice as CohortChoice
from fedjax_opt.planning.candidates import WhatIf as WhatIf
from fedjax_opt.planning.figure import save_plot as save_plot
from fedjax_opt.planning.paper_tasks import PaperTask as PaperTask
from fedjax_opt.planning.paper_tasks import paper_tasks as paper_tasks
from fedjax_opt.planning.planner import Plan as Plan
from fedjax_opt.planning.planner import plan as plan
from fedjax_opt.planning.report import as_dict as as_dict
from fedjax_opt.planning.report import table as table
from fedjax_opt.planning.schedules import Forecast as Forecast
from fedjax_opt.planning.setting import Setting as Setting
from fedjax_opt.planning.tuned import TunedRun as TunedRun
