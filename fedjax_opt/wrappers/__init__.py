"""Wrappers: an algorithm in, an algorithm out."""

from fedjax_opt.wrappers import aggregators as aggregators
from fedjax_opt.wrappers import attacks as attacks
from fedjax_opt.wrappers.aggregators import aggregated as aggregated
from fedjax_opt.wrappers.compressed import compressed as compressed
from fedjax_opt.wrappers.local_terms import clipped as clipped
from fedjax_opt.wrappers.local_terms import contrastive as contrastive
from fedjax_opt.wrappers.local_terms import max_entropy as max_entropy
from fedjax_opt.wrappers.local_terms import proximal as proximal
from fedjax_opt.wrappers.local_terms import weight_decay as weight_decay
from fedjax_opt.wrappers.private import private as private
from fedjax_opt.wrappers.server_optimizer import server_optimizer as server_optimizer
