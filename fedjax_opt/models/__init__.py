"""Models: from plain functions and from Flax modules."""

from fedjax_opt.models.classifier import classifier as classifier
from fedjax_opt.models.classifier import cross_entropy as cross_entropy
from fedjax_opt.models.linen import from_linen as from_linen
from fedjax_opt.models.mlp import mlp as mlp
