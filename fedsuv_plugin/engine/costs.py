"""What FedScale leaves out of TensorBoard and Weights & Biases: what a round costs."""

from __future__ import annotations

from typing import Any

from torch.utils.tensorboard import SummaryWriter

from fedsuv_plugin.engine.rounds import Played


def log_costs(played: Played, writer: SummaryWriter, wandb: Any | None) -> None:
    """Energy, valid share and probing to both; to wandb also what FedScale keeps from it."""
    number = played.round.number
    costs = {
        "Train/energy (J)": played.settled.joules,
        "Train/valid share": played.valid_share,
        "Train/probing (client s)": played.probing.client_time,
    }
    for name, value in costs.items():
        writer.add_scalar(name, value, number)
    if wandb is not None:
        metrics = played.judgement.metrics or {}
        tested = {f"Test/{key}": metrics[key] for key in ("accuracy", "loss") if key in metrics}
        wandb.log(costs | tested, step=number)
