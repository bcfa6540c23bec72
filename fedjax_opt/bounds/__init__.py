"""Convergence bounds and what they recommend, pure functions of constants; estimators of these."""

from fedjax_opt.bounds.coverage import expected_rounds_to_see_all as expected_rounds_to_see_all
from fedjax_opt.bounds.coverage import (
    expected_unseen_share_squared as expected_unseen_share_squared,
)
from fedjax_opt.bounds.curvature import Curvature as Curvature
from fedjax_opt.bounds.curvature import Heterogeneity as Heterogeneity
from fedjax_opt.bounds.curvature import Minimum as Minimum
from fedjax_opt.bounds.curvature import estimate_curvature as estimate_curvature
from fedjax_opt.bounds.curvature import estimate_heterogeneity as estimate_heterogeneity
from fedjax_opt.bounds.curvature import estimate_minimum as estimate_minimum
from fedjax_opt.bounds.estimate import EstimatedConstants as EstimatedConstants
from fedjax_opt.bounds.estimate import estimate_constants as estimate_constants
from fedjax_opt.bounds.fedacg import FedACGConstants as FedACGConstants
from fedjax_opt.bounds.fedacg import fedacg_convex as fedacg_convex
from fedjax_opt.bounds.fedacg import fedacg_convex_descent as fedacg_convex_descent
from fedjax_opt.bounds.fedacg import fedacg_convex_drift as fedacg_convex_drift
from fedjax_opt.bounds.fedacg import fedacg_convex_main_text as fedacg_convex_main_text
from fedjax_opt.bounds.fedacg import fedacg_descent as fedacg_descent
from fedjax_opt.bounds.fedacg import fedacg_drift as fedacg_drift
from fedjax_opt.bounds.fedacg import fedacg_learning_rate as fedacg_learning_rate
from fedjax_opt.bounds.fedacg import fedacg_lookahead as fedacg_lookahead
from fedjax_opt.bounds.fedacg import fedacg_nonconvex as fedacg_nonconvex
from fedjax_opt.bounds.fedacg import fedacg_sampling as fedacg_sampling
from fedjax_opt.bounds.fedavg import FedAvgConstants as FedAvgConstants
from fedjax_opt.bounds.fedavg import FedAvgPlan as FedAvgPlan
from fedjax_opt.bounds.fedavg import Link as Link
from fedjax_opt.bounds.fedavg import Rounds as Rounds
from fedjax_opt.bounds.fedavg import Seconds as Seconds
from fedjax_opt.bounds.fedavg import best_local_steps as best_local_steps
from fedjax_opt.bounds.fedavg import best_plan as best_plan
from fedjax_opt.bounds.fedavg import fedavg as fedavg
from fedjax_opt.bounds.fedavg import fedavg_distance as fedavg_distance
from fedjax_opt.bounds.fedavg import fedavg_gradients as fedavg_gradients
from fedjax_opt.bounds.fedavg import optimal_learning_rate as optimal_learning_rate
from fedjax_opt.bounds.fedavg import optimal_local_steps as optimal_local_steps
from fedjax_opt.bounds.fedgbo import FedGBOConstants as FedGBOConstants
from fedjax_opt.bounds.fedgbo import fedgbo as fedgbo
from fedjax_opt.bounds.fedgbo import fedgbo_alignment as fedgbo_alignment
from fedjax_opt.bounds.fedgbo import fedgbo_corollary as fedgbo_corollary
from fedjax_opt.bounds.fedgbo import fedgbo_descent as fedgbo_descent
from fedjax_opt.bounds.fedgbo import fedgbo_momentum as fedgbo_momentum
from fedjax_opt.bounds.fedgbo import (
    fedgbo_optimal_learning_rate as fedgbo_optimal_learning_rate,
)
from fedjax_opt.bounds.fedgbo import fedgbo_perturbation as fedgbo_perturbation
from fedjax_opt.bounds.fedgbo import fedgbo_pseudo_learning_rate as fedgbo_pseudo_learning_rate
from fedjax_opt.bounds.fedgbo import fedgbo_step as fedgbo_step
from fedjax_opt.bounds.ghbm import GHBMConstants as GHBMConstants
from fedjax_opt.bounds.ghbm import GHBMStepSizes as GHBMStepSizes
from fedjax_opt.bounds.ghbm import ghbm_cyclic_deviation as ghbm_cyclic_deviation
from fedjax_opt.bounds.ghbm import ghbm_descent as ghbm_descent
from fedjax_opt.bounds.ghbm import ghbm_drift as ghbm_drift
from fedjax_opt.bounds.ghbm import ghbm_first_steps as ghbm_first_steps
from fedjax_opt.bounds.ghbm import ghbm_heavy_ball as ghbm_heavy_ball
from fedjax_opt.bounds.ghbm import ghbm_momentum_deviation as ghbm_momentum_deviation
from fedjax_opt.bounds.ghbm import ghbm_momentum_error as ghbm_momentum_error
from fedjax_opt.bounds.ghbm import ghbm_rate as ghbm_rate
from fedjax_opt.bounds.ghbm import ghbm_step_sizes as ghbm_step_sizes
from fedjax_opt.bounds.ghbm import ghbm_update_errors as ghbm_update_errors
from fedjax_opt.bounds.gradients import Dissimilarity as Dissimilarity
from fedjax_opt.bounds.gradients import Estimate as Estimate
from fedjax_opt.bounds.gradients import Noise as Noise
from fedjax_opt.bounds.gradients import estimate_dissimilarity as estimate_dissimilarity
from fedjax_opt.bounds.gradients import estimate_noise as estimate_noise
from fedjax_opt.bounds.rates import RateConstants as RateConstants
from fedjax_opt.bounds.rates import rates as rates
from fedjax_opt.bounds.theorem import Bound as Bound
from fedjax_opt.bounds.theorem import Optimum as Optimum
