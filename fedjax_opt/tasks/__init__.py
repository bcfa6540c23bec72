"""Tasks: data, split, model and hyperparameters of the papers, tied together."""

from fedjax_opt.tasks.catalogue import NAMES as NAMES
from fedjax_opt.tasks.catalogue import load as load
from fedjax_opt.tasks.cifar import cifar10_dirichlet as cifar10_dirichlet
from fedjax_opt.tasks.cifar import cifar100_dirichlet as cifar100_dirichlet
from fedjax_opt.tasks.cifar import cifar100_pam as cifar100_pam
from fedjax_opt.tasks.images import digits as digits
from fedjax_opt.tasks.images import digits_users as digits_users
from fedjax_opt.tasks.images import fashion_mnist_dirichlet as fashion_mnist_dirichlet
from fedjax_opt.tasks.images import mnist_shards as mnist_shards
from fedjax_opt.tasks.images import mnist_users as mnist_users
from fedjax_opt.tasks.own import from_files as from_files
from fedjax_opt.tasks.people import activity as activity
from fedjax_opt.tasks.people import femnist as femnist
from fedjax_opt.tasks.people import femnist_cnn as femnist_cnn
from fedjax_opt.tasks.people import plays as plays
from fedjax_opt.tasks.people import sent140 as sent140
from fedjax_opt.tasks.people import shakespeare as shakespeare
from fedjax_opt.tasks.suggested import Suggested as Suggested
from fedjax_opt.tasks.suggested import suggested as suggested
