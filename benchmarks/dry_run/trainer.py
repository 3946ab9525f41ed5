"""A small language model under the trainer of transformers, every decoder layer sharded."""

import sys

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

WORDS, LENGTH, NUM_LAYERS = 1000, 128, 2


class Text(Dataset):
    """Rows of words, drawn in a random order."""

    def __init__(self) -> None:
        self.rows = torch.randint(WORDS, (4096, LENGTH))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[at], "labels": self.rows[at]}


def main(folder: str) -> None:
    """As its documentation shows it."""
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=4,
    )
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=2,
        max_steps=50,
        bf16=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        fsdp=True,
        fsdp_config={"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"], "fsdp_version": 2},
    )
    Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=Text()).train()


main(sys.argv[1])
