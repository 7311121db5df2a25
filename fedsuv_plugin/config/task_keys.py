"""The keys of a job file that say what is trained: the data, the model and the clients' SGD."""

from __future__ import annotations

from dataclasses import dataclass

from fedsuv_plugin.params import Params, param


@dataclass(frozen=True, kw_only=True)
class TaskKeys(Params):
    """Data, model and training. A key marked [FedScale: ...] has that default in FedScale."""

    # data
    data_set: str = param("digits", "data set [FedScale: cifar10]")
    data_dir: str | None = param(None, "folder of the data set; none: $FEDSUV_DATA/<data set>")
    data_map_file: str | None = param(
        None, "CSV that says who owns which sample; none: `partition` decides"
    )
    num_clients: int | None = param(
        None, "clients; none: 100, or all of the map file or of partition: natural", low=1
    )
    partition: str = param(
        "iid",
        "how samples are shared out: iid, dirichlet, dirichlet_qp, shards, label_subset, or "
        "natural, to the writers, speakers or roles they come from (num_clients keeps so many at "
        "random); "
        "`fedsuv data partition` shows and exports it",
    )
    partition_alpha: float = param(
        0.5,
        "concentration of partition: dirichlet (of each class over the clients) and dirichlet_qp "
        "(of a client's labels around those of all: GPFL's zeta); small is non-iid",
        above=0,
    )
    shards_per_client: int = param(
        2, "pieces of one label each that a client gets with partition: shards", low=1
    )
    data_fraction: float = param(
        1.0,
        "share of the training samples that is used at all, the same of every label, drawn from "
        "the seed",
        above=0,
        high=1,
    )
    test_samples: int | None = param(
        None,
        "at most so many test samples, drawn from the seed; none: all. interview_fraction is a "
        "share of these",
        low=1,
    )
    label_noise_clients: float = param(
        0.0,
        "share of the clients whose training labels are all wrong: every class is taken for the "
        "next one",
        low=0,
        high=1,
    )
    raw_pixels: bool = param(
        False, "pixels as they come, 0 to 255, instead of normalised (data sets of images)"
    )
    stand_in: bool = param(
        False,
        "made-up samples of the data set's shape, classes and kind of clients, for a job "
        "whose data is not here: it runs, and its results mean nothing",
    )
    synthetic_samples: int = param(
        2000, "training samples of data_set: synthetic and of stand_in", low=1
    )
    synthetic_dim: int = param(20, "dimension of data_set: synthetic", low=1)
    synthetic_classes: int = param(10, "classes of data_set: synthetic", low=2)

    # model and training
    model: str = param(
        "mlp",
        "model: lr, svm, mlp, cnn, gpfl_cnn, filfl_cnn, pczfl_cnn, char_lstm, char_lstm_small or "
        "a torchvision classifier, of which ResNets, MobileNet-V2 and ShuffleNet-V2 are fitted to "
        "images of up to 64 pixels [FedScale: shufflenet_v2_x2_0]",
    )
    mlp_hidden: str = param("64,30", "widths of the hidden layers of model: mlp")
    local_steps: int = param(
        20,
        "gradient steps per participation, each of a whole batch; what an epoch leaves over "
        "is dropped, as FedScale does. Without effect if local_epochs is set",
        low=1,
    )
    local_epochs: int | None = param(
        None,
        "epochs per participation: every sample of the client once in each, the last batch as "
        "small as it comes; a client's computing time is then that of its own samples. none: "
        "local_steps",
        low=1,
    )
    batch_size: int = param(
        30,
        "samples per step; a client that has fewer uses what it has. A batch of one sample is "
        "normalised by BatchNorm's running statistics and leaves them as they are",
        low=1,
    )
    test_bsz: int = param(128, "samples per step of evaluation", low=1)
    learning_rate: float = param(5e-2, "of the clients' SGD", above=0)
    min_learning_rate: float = param(5e-5, "where its decay stops", low=0)
    decay_factor: float = param(0.98, "its decay every `decay_round` rounds", above=0)
    decay_round: int = param(10, "rounds between decays", low=1)
    momentum: float = param(0.9, "of the clients' SGD (FedScale fixes it at this)", low=0, high=1)
    weight_decay: float = param(
        5e-4, "of the clients' SGD (FedScale's key says 0, its SGD uses this)", low=0
    )
    loss_decay: float = param(
        0.2, "weight of the newest batch in the moving training loss", low=0, high=1
    )
    gradient_policy: str | None = param(
        None,
        "none: FedAvg; fed-prox, fed-yogi, q-fedavg",
        choices=("fed-avg", "fed-prox", "fed-yogi", "q-fedavg"),
    )
    aggregation_weights: str = param(
        "equal",
        "a client's weight in the average, of its parameters and of its BatchNorm statistics",
        choices=("equal", "samples"),
    )
    proxy_mu: float = param(0.1, "strength of fed-prox; 0 is FedAvg", low=0)
    yogi_eta: float = param(3e-3, "server learning rate of fed-yogi", above=0)
    yogi_tau: float = param(1e-8, "adaptivity of fed-yogi", above=0)
    yogi_beta: float = param(0.9, "first moment of fed-yogi", low=0, high=1)
    yogi_beta2: float = param(0.99, "second moment of fed-yogi", low=0, high=1)
    qfed_q: float = param(1.0, "fairness of q-fedavg; 0 is FedAvg", low=0)
