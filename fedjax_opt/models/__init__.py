"""Models: those of the papers, and adapters for plain functions, Flax modules and other pytrees."""

from fedjax_opt.models.bag_of_words import bag_of_words as bag_of_words
from fedjax_opt.models.classifier import classifier as classifier
from fedjax_opt.models.classifier import cross_entropy as cross_entropy
from fedjax_opt.models.convolution import patch_conv as patch_conv
from fedjax_opt.models.deep_images import mobilenet_v2 as mobilenet_v2
from fedjax_opt.models.deep_images import resnet18 as resnet18
from fedjax_opt.models.deep_images import resnet20 as resnet20
from fedjax_opt.models.deep_images import vit_b16 as vit_b16
from fedjax_opt.models.images import cifar_cnn as cifar_cnn
from fedjax_opt.models.images import cnn as cnn
from fedjax_opt.models.images import dnn as dnn
from fedjax_opt.models.images import lenet as lenet
from fedjax_opt.models.images import mnist_cnn as mnist_cnn
from fedjax_opt.models.language import gru as gru
from fedjax_opt.models.language import lstm as lstm
from fedjax_opt.models.language import stack_overflow_lstm as stack_overflow_lstm
from fedjax_opt.models.linen import from_linen as from_linen
from fedjax_opt.models.mlp import mlp as mlp
from fedjax_opt.models.nnx import from_nnx as from_nnx
from fedjax_opt.models.own_loss import from_loss as from_loss
from fedjax_opt.models.pooling import avg_pool as avg_pool
from fedjax_opt.models.pooling import max_pool as max_pool
from fedjax_opt.models.preprocessed import preprocessed as preprocessed
from fedjax_opt.models.pytree import from_pytree as from_pytree
from fedjax_opt.models.sequences import sequence_cross_entropy as sequence_cross_entropy
from fedjax_opt.models.thin_product import thin_dot as thin_dot
