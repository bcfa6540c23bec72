"""Reports on comparisons: one page in a file of its own, and plots."""

from fedjax_opt.experiments.report.page import About as About
from fedjax_opt.experiments.report.page import write_report as write_report
from fedjax_opt.experiments.report.plots import draw as draw
from fedjax_opt.experiments.report.plots import panels as panels
from fedjax_opt.experiments.report.plots import save_plots as save_plots
