"""Wrappers: an algorithm in, an algorithm out."""

from fedjax_opt.wrappers import aggregators as aggregators
from fedjax_opt.wrappers import attacks as attacks
from fedjax_opt.wrappers.aggregators import aggregated as aggregated
from fedjax_opt.wrappers.clipped import clipped as clipped
from fedjax_opt.wrappers.compressed import compressed as compressed
from fedjax_opt.wrappers.contrastive import contrastive as contrastive
from fedjax_opt.wrappers.max_entropy import max_entropy as max_entropy
from fedjax_opt.wrappers.private import private as private
from fedjax_opt.wrappers.proximal import proximal as proximal
from fedjax_opt.wrappers.server_optimizer import server_optimizer as server_optimizer
from fedjax_opt.wrappers.weight_decay import weight_decay as weight_decay
