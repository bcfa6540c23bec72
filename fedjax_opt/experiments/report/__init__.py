"""One page for a comparison: curves against rounds, bytes, operations and time, and what they cost."""

from fedjax_opt.experiments.report.page import About as About
from fedjax_opt.experiments.report.page import write_report as write_report
from fedjax_opt.experiments.report.plots import save_plots as save_plots
