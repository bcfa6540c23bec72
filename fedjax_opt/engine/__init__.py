"""What is computed: one client, one round, many rounds, evaluation."""

from fedjax_opt.core import cohorts as cohorts
from fedjax_opt.engine.client import ClientResult as ClientResult
from fedjax_opt.engine.client import Invitation as Invitation
from fedjax_opt.engine.client import Observer as Observer
from fedjax_opt.engine.client import client_job as client_job
from fedjax_opt.engine.client import client_key as client_key
from fedjax_opt.engine.client import client_probe as client_probe
from fedjax_opt.engine.client import client_update as client_update
from fedjax_opt.engine.evaluate import client_evaluate as client_evaluate
from fedjax_opt.engine.evaluate import evaluate as evaluate
from fedjax_opt.engine.evaluate import evaluate_clients as evaluate_clients
from fedjax_opt.engine.evaluate import personal_variables as personal_variables
from fedjax_opt.engine.make_round import make_round as make_round
from fedjax_opt.engine.minibatches import Feed as Feed
from fedjax_opt.engine.minibatches import feed as feed
from fedjax_opt.engine.run import Run as Run
from fedjax_opt.engine.run import run_rounds as run_rounds
from fedjax_opt.engine.server import ServerInfo as ServerInfo
from fedjax_opt.engine.server import Total as Total
from fedjax_opt.engine.server import contribution as contribution
from fedjax_opt.engine.server import report_contribution as report_contribution
from fedjax_opt.engine.server import server_probe as server_probe
from fedjax_opt.engine.server import server_update as server_update
from fedjax_opt.engine.server import zero_total as zero_total
