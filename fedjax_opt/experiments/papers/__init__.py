"""Tables and figures of papers as experiments, with what the papers report."""

from fedjax_opt.experiments.papers.catalogue import ENTRIES as ENTRIES
from fedjax_opt.experiments.papers.catalogue import find as find
from fedjax_opt.experiments.papers.entry import Claim as Claim
from fedjax_opt.experiments.papers.entry import Entry as Entry
from fedjax_opt.experiments.papers.entry import Part as Part
from fedjax_opt.experiments.papers.measured import Row as Row
from fedjax_opt.experiments.papers.measured import cells as cells
from fedjax_opt.experiments.papers.measured import measure as measure
from fedjax_opt.experiments.papers.measured import verdicts as verdicts
