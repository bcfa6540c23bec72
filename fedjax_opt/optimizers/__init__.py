"""Optimisers as (update, track, inverse) triples that are optax transformations."""

from fedjax_opt.optimizers.combinators import AveragingStats as AveragingStats
from fedjax_opt.optimizers.combinators import ChainStats as ChainStats
from fedjax_opt.optimizers.combinators import chain as chain
from fedjax_opt.optimizers.combinators import from_optax as from_optax
from fedjax_opt.optimizers.triple import Triple as Triple
from fedjax_opt.optimizers.triple import affine as affine
from fedjax_opt.optimizers.triple import moving as moving
from fedjax_opt.optimizers.triples import Statistics as Statistics
from fedjax_opt.optimizers.triples import adagrad as adagrad
from fedjax_opt.optimizers.triples import adam as adam
from fedjax_opt.optimizers.triples import rmsprop as rmsprop
from fedjax_opt.optimizers.triples import sgd as sgd
from fedjax_opt.optimizers.triples import sgdm as sgdm
from fedjax_opt.optimizers.triples import yogi as yogi
