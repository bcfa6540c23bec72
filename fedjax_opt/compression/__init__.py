"""Codecs: how messages are made small, and the bytes that travel."""

from fedjax_opt.compression.codec import Codec as Codec
from fedjax_opt.compression.codec import expected_bytes as expected_bytes
from fedjax_opt.compression.codec import lossy as lossy
from fedjax_opt.compression.codec import size as size
from fedjax_opt.compression.codecs import ce_fedavg as ce_fedavg
from fedjax_opt.compression.codecs import chain as chain
from fedjax_opt.compression.codecs import excluding as excluding
from fedjax_opt.compression.codecs import random_k as random_k
from fedjax_opt.compression.codecs import top_k as top_k
from fedjax_opt.compression.quantisers import exponential as exponential
from fedjax_opt.compression.quantisers import sign as sign
from fedjax_opt.compression.quantisers import ternary as ternary
from fedjax_opt.compression.quantisers import uniform as uniform
from fedjax_opt.compression.wire import bytes_of_coded as bytes_of_coded
from fedjax_opt.compression.wire import decode as decode
from fedjax_opt.compression.wire import encode as encode
