"""Where data comes from: files of other federated libraries, tables, and data sets by name."""

from fedjax_opt.data.sources.catalogue import DataSet as DataSet
from fedjax_opt.data.sources.catalogue import load as load
from fedjax_opt.data.sources.leaf import read_leaf as read_leaf
from fedjax_opt.data.sources.registry import get as get
from fedjax_opt.data.sources.tfds import read_tfds as read_tfds
from fedjax_opt.data.sources.tff import read_hdf5 as read_hdf5
from fedjax_opt.data.sources.tff import read_sqlite as read_sqlite
