"""The trainer of a library (transformers) on a tiny language model, as its guide has it."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Numbers(Dataset):
    """Sequences that count on."""

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        words = (torch.arange(64) + index) % 200
        return {"input_ids": words, "labels": words}


torch.manual_seed(10)
config = GPT2Config(
    vocab_size=200, n_positions=64, n_embd=128, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
)
with tempfile.TemporaryDirectory() as folder:
    asked = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=16,
        max_steps=5000,
        learning_rate=1e-3,
        save_strategy="no",
        report_to="none",
        logging_steps=1000,
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    Trainer(model=GPT2LMHeadModel(config), args=asked, train_dataset=Numbers()).train()
