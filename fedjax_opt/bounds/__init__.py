"""Convergence bounds and what they recommend: pure functions of named constants."""

from fedjax_opt.bounds.coverage import SimulatedRounds as SimulatedRounds
from fedjax_opt.bounds.coverage import expected_rounds_to_see_all as expected_rounds_to_see_all
from fedjax_opt.bounds.coverage import (
    expected_unseen_share_squared as expected_unseen_share_squared,
)
from fedjax_opt.bounds.coverage import probability_all_seen as probability_all_seen
from fedjax_opt.bounds.coverage import rounds_to_see_all_quantile as rounds_to_see_all_quantile
from fedjax_opt.bounds.coverage import simulated_rounds_to_see_all as simulated_rounds_to_see_all
from fedjax_opt.bounds.estimators.constants import EstimatedConstants as EstimatedConstants
from fedjax_opt.bounds.estimators.constants import estimate_constants as estimate_constants
from fedjax_opt.bounds.estimators.curvature import Curvature as Curvature
from fedjax_opt.bounds.estimators.curvature import estimate_curvature as estimate_curvature
from fedjax_opt.bounds.estimators.dissimilarity import Dissimilarity as Dissimilarity
from fedjax_opt.bounds.estimators.dissimilarity import (
    estimate_dissimilarity as estimate_dissimilarity,
)
from fedjax_opt.bounds.estimators.estimate import Estimate as Estimate
from fedjax_opt.bounds.estimators.minimum import Heterogeneity as Heterogeneity
from fedjax_opt.bounds.estimators.minimum import Minimum as Minimum
from fedjax_opt.bounds.estimators.minimum import estimate_heterogeneity as estimate_heterogeneity
from fedjax_opt.bounds.estimators.minimum import estimate_minimum as estimate_minimum
from fedjax_opt.bounds.estimators.noise import Noise as Noise
from fedjax_opt.bounds.estimators.noise import estimate_noise as estimate_noise
from fedjax_opt.bounds.fedacg import FedACGConstants as FedACGConstants
from fedjax_opt.bounds.fedacg import fedacg_learning_rate as fedacg_learning_rate
from fedjax_opt.bounds.fedacg import fedacg_nonconvex as fedacg_nonconvex
from fedjax_opt.bounds.fedacg_convex import fedacg_convex as fedacg_convex
from fedjax_opt.bounds.fedacg_convex import fedacg_convex_main_text as fedacg_convex_main_text
from fedjax_opt.bounds.fedacg_convex import (
    fedacg_optimal_proximal_weight as fedacg_optimal_proximal_weight,
)
from fedjax_opt.bounds.fedavg_constants import FedAvgConstants as FedAvgConstants
from fedjax_opt.bounds.fedavg_constants import Link as Link
from fedjax_opt.bounds.fedavg_plan import FedAvgPlan as FedAvgPlan
from fedjax_opt.bounds.fedavg_plan import best_plan as best_plan
from fedjax_opt.bounds.fedavg_theorem import fedavg as fedavg
from fedjax_opt.bounds.fedavg_theorem import fedavg_by_rounds as fedavg_by_rounds
from fedjax_opt.bounds.fedavg_theorem import fedavg_by_runtime as fedavg_by_runtime
from fedjax_opt.bounds.fedgbo_constants import FedGBOConstants as FedGBOConstants
from fedjax_opt.bounds.fedgbo_constants import (
    fedgbo_pseudo_learning_rate as fedgbo_pseudo_learning_rate,
)
from fedjax_opt.bounds.fedgbo_lemmas import fedgbo_momentum as fedgbo_momentum
from fedjax_opt.bounds.fedgbo_lemmas import fedgbo_perturbation as fedgbo_perturbation
from fedjax_opt.bounds.fedgbo_theorem import fedgbo as fedgbo
from fedjax_opt.bounds.fedgbo_theorem import fedgbo_corollary as fedgbo_corollary
from fedjax_opt.bounds.fedgbo_theorem import (
    fedgbo_optimal_learning_rate as fedgbo_optimal_learning_rate,
)
from fedjax_opt.bounds.ghbm import GHBMConstants as GHBMConstants
from fedjax_opt.bounds.ghbm import ghbm_cyclic_deviation as ghbm_cyclic_deviation
from fedjax_opt.bounds.ghbm import ghbm_momentum_deviation as ghbm_momentum_deviation
from fedjax_opt.bounds.ghbm import ghbm_momentum_error as ghbm_momentum_error
from fedjax_opt.bounds.ghbm_rate import GHBMStepSizes as GHBMStepSizes
from fedjax_opt.bounds.ghbm_rate import ghbm_rate as ghbm_rate
from fedjax_opt.bounds.ghbm_rate import ghbm_step_sizes as ghbm_step_sizes
from fedjax_opt.bounds.optimal import best_local_steps as best_local_steps
from fedjax_opt.bounds.optimal import optimal_learning_rate as optimal_learning_rate
from fedjax_opt.bounds.optimal import (
    optimal_learning_rate_by_rounds as optimal_learning_rate_by_rounds,
)
from fedjax_opt.bounds.optimal import optimal_local_steps as optimal_local_steps
from fedjax_opt.bounds.optimal import optimal_local_steps_by_rounds as optimal_local_steps_by_rounds
from fedjax_opt.bounds.rate_comparison import RateConstants as RateConstants
from fedjax_opt.bounds.rate_comparison import RateRow as RateRow
from fedjax_opt.bounds.rate_comparison import rate_table as rate_table
from fedjax_opt.bounds.rate_comparison import rates as rates
from fedjax_opt.bounds.result import Bound as Bound
from fedjax_opt.bounds.result import Optimum as Optimum
