"""Federated algorithms, one short file per family."""

from fedjax_opt.algorithms.adaptive_fedopt import adaptive_fedopt as adaptive_fedopt
from fedjax_opt.algorithms.adaptive_fedopt import fedadagrad as fedadagrad
from fedjax_opt.algorithms.adaptive_fedopt import fedadam as fedadam
from fedjax_opt.algorithms.adaptive_fedopt import fedavgm as fedavgm
from fedjax_opt.algorithms.adaptive_fedopt import fedyogi as fedyogi
from fedjax_opt.algorithms.dsgd import dsgd as dsgd
from fedjax_opt.algorithms.fedavg import fedavg as fedavg
from fedjax_opt.algorithms.fedgbo import fedgbo as fedgbo
from fedjax_opt.algorithms.fedprox import fedprox as fedprox
from fedjax_opt.algorithms.mfl import mfl as mfl
from fedjax_opt.algorithms.mimelite import mimelite as mimelite
from fedjax_opt.algorithms.mimelite import mimexlite as mimexlite
from fedjax_opt.algorithms.scaffold import scaffold as scaffold
