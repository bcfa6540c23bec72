"""Ways of computing what models are made of that suit a platform better than XLA's own.

They know nothing of federated learning, and nothing else of this package.
"""

from fedjax_opt.kernels.replacement import fast_convolutions as fast_convolutions
