"""Train a Megatron-shaped model in fp16, tensor parallel over all ranks: one microbatch per update."""

import argparse
import os
from dataclasses import fields

import torch
import torch.distributed as dist

from benchmarks.megatron.layers import Model, Shape

SCALE = 1024.0


def shape_of_arguments() -> Shape:
    """From the command line."""
    parser = argparse.ArgumentParser()
    for one in fields(Shape):
        if one.type is bool:
            parser.add_argument(f"--{one.name}", action="store_true")
        else:
            parser.add_argument(f"--{one.name}", type=one.type, default=one.default)
    return Shape(**vars(parser.parse_args()))


@torch.no_grad()
def update(weights: list[torch.Tensor], masters: list[torch.Tensor], optimizer: torch.optim.Optimizer) -> None:
    """Clip, step and copy, all weights at once."""
    left = [weight for weight in weights if weight.grad is not None]
    torch._foreach_add_([weight.main_grad for weight in left], [weight.grad for weight in left])
    gradients = [weight.main_grad for weight in weights]
    scale = torch.full((), 1 / SCALE, device=gradients[0].device)
    torch._amp_foreach_non_finite_check_and_unscale_(gradients, torch.zeros_like(scale), scale)
    norm = torch.stack(torch._foreach_norm(gradients)).norm()
    torch._foreach_mul_(gradients, 1 / norm.clamp(min=1.0))
    for weight, master in zip(weights, masters, strict=True):
        weight.grad, master.grad = None, weight.main_grad
    optimizer.step()
    torch._foreach_copy_(weights, masters)
    torch._foreach_zero_(gradients)


def main() -> None:
    """A plain loop: fp32 masters of the weights, gradients added in fp32."""
    shape = shape_of_arguments()
    has_device = torch.cuda.is_available()
    dist.init_process_group("nccl" if has_device else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_device else torch.device("cpu")
    model = Model(shape).to(device)
    masters = []
    for weight in model.parameters():
        weight.main_grad = torch.zeros_like(weight, dtype=torch.float32)
        masters.append(weight.detach().float().clone().requires_grad_())
    optimizer = torch.optim.AdamW(masters, lr=1e-4, fused=True)
    size = (shape.microbatch, shape.sequence)
    for _ in range(8):
        tokens, targets = (torch.randint(shape.vocabulary, size, device=device) for _ in range(2))
        loss = model(tokens, targets)
        (loss * SCALE).backward()
        update(list(model.parameters()), masters, optimizer)


main()
