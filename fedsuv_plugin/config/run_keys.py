"""The keys of a job file that say how a job is run: selector, devices and clock among them."""

from __future__ import annotations

from dataclasses import dataclass

from fedsuv_plugin.params import Params, param


@dataclass(frozen=True, kw_only=True)
class RunKeys(Params):
    """Selector, devices and clock. A key marked [FedScale: ...] has that default in FedScale."""

    # the job
    job_name: str = param("demo_job", "name of the job, and of its folder of run directories")
    log_path: str = param("runs", "folder that holds the run directories [FedScale: ./]")
    seed: int = param(0, "the one seed; the same config gives the same numbers", low=0)
    rounds: int = param(50, "rounds to train (FedScale stops one short of it)", low=1)
    stop_at_accuracy: float | None = param(
        None,
        "the job ends with the first evaluation at which the test accuracy is at least this; none: "
        "with its last round",
        above=0,
        high=1,
    )
    eval_interval: int = param(5, "rounds between evaluations on the test set", low=1)
    checkpoint_every: int = param(10, "rounds between checkpoints", low=1)
    torch_threads: int = param(
        1, "threads of one torch operation; the last bits of the results depend on it", low=1
    )
    use_cuda: bool = param(False, "train on a GPU [FedScale: true]")
    wandb_token: str = param("", "Weights & Biases key; needs the extra 'wandb'")
    ps_ip: str = param("127.0.0.1", "address the aggregator binds to and executors connect to")
    ps_port: int = param(29500, "port of the aggregator", low=1, high=65535)
    connection_timeout: int = param(
        60,
        "seconds an executor tries to reach the aggregator, and a job without executors waits for "
        "one",
        low=1,
    )
    executor_timeout: float = param(
        30.0,
        "seconds of silence after which an executor is given up and its tasks go to the others",
        above=0,
    )
    insecure: bool = param(
        False,
        "without a secret (FEDSUV_TOKEN_FILE), listen on ps_ip even if other machines reach it",
    )
    tls_cert: str | None = param(
        None, "TLS between the hosts: file with the aggregator's certificate, which names ps_ip"
    )
    tls_key: str | None = param(None, "file with the key of tls_cert, on the aggregator's host")
    tls_ca: str | None = param(
        None, "file with the certificates by which executors know the aggregator's"
    )

    # selection
    sample_mode: str = param("random", "the selector: a name that `fedsuv selectors` lists")
    num_participants: int = param(4, "clients to aggregate per round", low=1)
    overcommitment: float = param(
        1.3, "clients asked per client aggregated, when no round_deadline is set", low=1
    )
    warmup_rounds: int = param(
        0,
        "rounds at the start in which everyone online is asked, whichever the selector; pczfl and "
        "oracle set their cohorts themselves (pczfl.warmup_rounds)",
        low=0,
    )
    filter_less: int = param(1, "clients with fewer samples are left out [FedScale: 32]", low=0)
    filter_more: float = param(1e15, "clients with more samples are left out", low=1)
    only_clients: str | None = param(
        None,
        "the only clients that the job has, by their ids: a list such as 3,7,10-19, or a file with "
        "such lists; none: everyone",
    )
    holdout_fraction: float | None = param(
        None,
        "share of each client's samples kept from training for its opinions; none: 0.2 if the "
        "selector needs it, else 0. Set it when comparing selectors",
        low=0,
        high=0.9,
    )
    interview_fraction: float | None = param(
        None,
        "share of the test set kept from the reported accuracy for interviews; none: 0.2 if the "
        "selector needs it, else 0. Set it when comparing selectors",
        low=0,
        high=0.9,
    )
    public_fraction: float | None = param(
        None,
        "share of the training samples taken from the clients for the server's public set; none: "
        "0.05 if the selector needs it and public_data_set is not set, else 0. Set it when "
        "comparing selectors",
        low=0,
        high=0.9,
    )
    public_data_set: str | None = param(
        None,
        "data set of the same shape and classes whose training samples are the public set; none: "
        "public_fraction",
    )
    public_samples: int | None = param(
        None, "at most so many samples of public_data_set; none: all", low=1
    )
    selector_test_samples: int | None = param(
        None,
        "test samples on which a selector that needs the global model's accuracy every round gets "
        "it; none: all",
        low=1,
    )

    # devices and time
    device_conf_file: str | None = param(
        None, "device speeds; none: equal devices [FedScale: /tmp/client.cfg]"
    )
    device_avail_file: str | None = param(None, "who is online when; none: always online")
    round_deadline: float | None = param(
        None, "seconds a round may last; none: FedScale's overcommitment", above=0
    )
    late_budget_mb: int = param(
        1024,
        "memory for updates that have to wait, with a selector that takes late ones; what is more "
        "goes to a temporary file",
        low=0,
    )
    clock_kbit: float | None = param(
        None,
        "size of the model that the clock counts, each way, in FedScale's kbit; none: the trained "
        "model's",
        above=0,
    )
    clock_samples: int | None = param(
        None,
        "samples that one participation goes through in the clock; none: batch_size x local_steps, "
        "or local_epochs x the client's own",
        low=1,
    )
    available_clients: int | None = param(
        None,
        "clients that are there at all, drawn from the seed every available_every rounds for any "
        "selector; who of them is online device_avail_file says. none: everyone",
        low=1,
    )
    available_every: int = param(5, "rounds until available_clients are drawn again", low=1)
    upload_success: float = param(
        1.0,
        "chance that a participant's update reaches the server; a lost one counts as "
        "having missed the round",
        low=0,
        high=1,
    )
    duration_jitter: float = param(
        0.1, "sigma of the log-normal fluctuation of a client's time; 0: none", low=0
    )
