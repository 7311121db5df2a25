"""Fashion-MNIST, in MNIST's format and torchvision's layout: <data_dir>/FashionMNIST/raw/*-ubyte[.gz].

Source: H. Xiao, K. Rasul, R. Vollgraf. "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning
    Algorithms." arXiv:1708.07747, 2017.
`data_dir` defaults to $FEDSUV_DATA/fashion_mnist.
"""
from __future__ import annotations

from fedsuv_plugin.tasks.datasets import DATASETS
from fedsuv_plugin.tasks.datasets.mnist import Mnist


@DATASETS.add("fmnist")
class FashionMnist(Mnist):
    folder, raw = "fashion_mnist", "FashionMNIST/raw"
    mean, std = 0.2860, 0.3530
