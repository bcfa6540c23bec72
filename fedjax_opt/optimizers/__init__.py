"""Optimisers as (update, track, inverse) triples that are optax transformations."""

from fedjax_opt.optimizers.adaptive import AdaptiveStats as AdaptiveStats
from fedjax_opt.optimizers.adaptive import adagrad as adagrad
from fedjax_opt.optimizers.adaptive import adam as adam
from fedjax_opt.optimizers.adaptive import rmsprop as rmsprop
from fedjax_opt.optimizers.adaptive import yogi as yogi
from fedjax_opt.optimizers.combinators import AveragingStats as AveragingStats
from fedjax_opt.optimizers.combinators import ChainStats as ChainStats
from fedjax_opt.optimizers.combinators import chain as chain
from fedjax_opt.optimizers.combinators import from_optax as from_optax
from fedjax_opt.optimizers.sgd import SgdStats as SgdStats
from fedjax_opt.optimizers.sgd import sgd as sgd
from fedjax_opt.optimizers.sgdm import SgdmStats as SgdmStats
from fedjax_opt.optimizers.sgdm import sgdm as sgdm
from fedjax_opt.optimizers.triple import Triple as Triple
from fedjax_opt.optimizers.triple import affine as affine
from fedjax_opt.optimizers.triple import moving as moving
