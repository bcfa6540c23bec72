"""One page for a comparison: curves against rounds, bytes, operations and time, and what they cost."""

from fedjax_opt.experiments.report.comparison import Comparison as Comparison
from fedjax_opt.experiments.report.comparison import Row as Row
from fedjax_opt.experiments.report.comparison import compare as compare
from fedjax_opt.experiments.report.curves import About as About
from fedjax_opt.experiments.report.curves import Curves as Curves
from fedjax_opt.experiments.report.curves import per_round as per_round
from fedjax_opt.experiments.report.figures import save_plots as save_plots
from fedjax_opt.experiments.report.page import write_report as write_report
