"""Train a small model under DDP over gloo, with the schedule of slices or as it is; a process of a test."""

import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from windtunnel import registry
from windtunnel.sources.torch.live import LiveProgram
from windtunnel.systems.collectives import sliced

__all__ = ["main"]


DEFAULTS = {"optimizer": "adam", "steps": 12, "is_sliced": True, "clips": None, "accumulates": 1, "is_scaled": False}


class Net(torch.nn.Module):
    """Attention, which uses a part without calling it, a frozen layer, and sizes that no number of ranks divides."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(7, 12)
        self.frozen = torch.nn.Linear(12, 12).requires_grad_(False)
        self.attention = torch.nn.MultiheadAttention(12, 3, batch_first=True)
        self.norm = torch.nn.LayerNorm(12)
        self.last = torch.nn.Linear(12, 5)

    def forward(self, x):
        x = torch.relu(self.frozen(self.first(x)))
        return self.last(self.norm(x + self.attention(x, x, x, need_weights=False)[0])).mean(1)


OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda groups: torch.optim.Adam(groups, lr=1e-2, weight_decay=0.01),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=1e-2, amsgrad=True),
    "adafactor": torch.optim.Adafactor,
    "part": lambda groups: torch.optim.Adam(groups[:1]),
}


def main(worker):
    """Tell of each run of ``worker.config`` what came of it, in the end all of them."""
    dist.init_process_group(
        "gloo", init_method=f"file://{worker.rendezvous}", rank=worker.rank, world_size=worker.num_ranks
    )
    results = {}
    for name, config in worker.config.items():
        try:
            results[name] = _train(worker, {**DEFAULTS, **config})
        except Exception as error:
            results[name] = {"error": f"{type(error).__name__}: {error}"}
    worker.tell(results)
    dist.barrier()
    os._exit(0)  # threads of processes that failed may wait for their peers


def _train(worker, config):
    program = LiveProgram(rank=worker.rank, num_ranks=worker.num_ranks)
    torch.manual_seed(0)
    net = Net()
    decayed = [item for item in net.parameters() if item.dim() > 1]
    others = [item for item in net.parameters() if item.dim() <= 1]
    groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0, "lr": 2e-2}]
    flight = registry.get("flight", "sliced-optimizer").function
    sliced.PIECE_BYTES = 256  # several pieces to a bucket
    with flight(program) if config["is_sliced"] else nullcontext():
        result, model, optimizer = _run(worker, config, program, net, groups)
    weights = [item.detach().double().sum().item() for item in model.state_dict().values()]
    return {**result, "weights": weights, "state_bytes_after": _state_bytes(optimizer)}


def _run(worker, config, program, net, groups):
    model = DistributedDataParallel(net, bucket_cap_mb=0.001, **config.get("ddp", {}))
    optimizer = OPTIMIZERS[config["optimizer"]](groups)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    program.add([model], [optimizer])
    scaler = torch.amp.GradScaler("cpu", enabled=config["is_scaled"])
    torch.manual_seed(1 + worker.rank)
    losses = []
    for step in range(config["steps"]):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        for part in range(config["accumulates"]):
            x, y = torch.randn(6, 4, 7), torch.randn(6, 5)
            if part + 1 < config["accumulates"] and not config.get("forgets_no_sync"):
                with model.no_sync():
                    torch.nn.functional.mse_loss(model(x), y).backward()
            else:
                loss = torch.nn.functional.mse_loss(model(x), y)
                scaler.scale(loss).backward()
        if config["clips"]:
            torch.nn.utils.clip_grad_norm_(model.parameters(), config["clips"])
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        losses.append(float(loss))
        if step == 8:
            saved = optimizer.state_dict()
            state = {
                number: sum(value.double().sum().item() for value in item.values() if isinstance(value, torch.Tensor))
                for number, item in saved["state"].items()
            }
            optimizer.load_state_dict(saved)
    result = {
        "losses": losses,
        "state": state,
        "state_bytes": _state_bytes(optimizer),
        "counts": dict(program.counts),
    }
    return result, model, optimizer


def _state_bytes(optimizer):
    tensors = [value for item in optimizer.state.values() for value in item.values() if isinstance(value, torch.Tensor)]
    return sum(value.numel() * value.element_size() for value in tensors if value.dim())
