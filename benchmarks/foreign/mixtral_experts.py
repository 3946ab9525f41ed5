"""Transformers: a tiny Mixtral; which of its experts a word goes to, and so their shapes, changes with every batch."""

import torch
from transformers import MixtralConfig, MixtralForCausalLM

torch.manual_seed(5)
config = MixtralConfig(
    vocab_size=256,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_local_experts=4,
    num_experts_per_tok=2,
    output_router_logits=True,
    max_position_embeddings=128,
)
model = MixtralForCausalLM(config)
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01)
text = torch.cat([torch.arange(256).roll(int(shift)) for shift in torch.randint(0, 256, (400,))])
for step in range(20_000):
    begins = torch.randint(0, len(text) - 64, (8,))
    input_ids = torch.stack([text[begin : begin + 64] for begin in begins])
    outputs = model(input_ids=input_ids, labels=input_ids)
    optimizer.zero_grad()
    outputs.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 100 == 0:
        print(f"step {step}: loss {outputs.loss.item():.3f}")
