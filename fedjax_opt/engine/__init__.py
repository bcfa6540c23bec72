"""What is computed: one client, one round, many rounds, evaluation."""

from fedjax_opt.engine import cohorts as cohorts
from fedjax_opt.engine.evaluate import evaluate as evaluate
from fedjax_opt.engine.evaluate import evaluate_clients as evaluate_clients
from fedjax_opt.engine.evaluate import personal_variables as personal_variables
from fedjax_opt.engine.make_round import make_round as make_round
from fedjax_opt.engine.run import Run as Run
from fedjax_opt.engine.run import run_rounds as run_rounds
