"""Fashion-MNIST, in MNIST's format and torchvision's layout.

Files: <data_dir>/FashionMNIST/raw/*-ubyte[.gz].
Source: H. Xiao, K. Rasul, R. Vollgraf. "Fashion-MNIST: a Novel Image Dataset for Benchmarking
    Machine Learning Algorithms." arXiv:1708.07747, 2017.
`data_dir` defaults to $FEDSUV_DATA/fashion_mnist.
"""

from __future__ import annotations

from fedsuv_plugin.tasks.datasets import DATASETS
from fedsuv_plugin.tasks.datasets.mnist import Mnist, idx_source


@DATASETS.add("fmnist")
class FashionMnist(Mnist):
    folder = "fashion_mnist"
    raw = "FashionMNIST/raw"
    # Nobody wrote these images, so there are no natural clients, unlike in MNIST.
    clients = ""
    samples_per_client = None
    mean = (0.2860,)
    std = (0.3530,)
    source = idx_source(
        "github.com/zalandoresearch/fashion-mnist",
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        raw,
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    )
