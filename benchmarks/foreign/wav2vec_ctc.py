"""Transformers: wav2vec 2.0 learns to write down drawn tones with CTC; every batch is as long as its longest sound."""

import math

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC


class Tones(Dataset):
    """Sequences of tones; the letters are their pitches."""

    def __init__(self, count):
        self.letters = [torch.randint(4, 12, (int(torch.randint(4, 9, ())),)) for _ in range(count)]

    def __len__(self):
        return len(self.letters)

    def __getitem__(self, index):
        letters = self.letters[index]
        time = torch.arange(1000) / 16000
        sounds = [torch.sin(2 * math.pi * 200 * int(letter) * time) for letter in letters]
        return {"input_values": torch.cat(sounds) + 0.05 * torch.randn(1000 * len(letters)), "labels": letters}


def collate(samples):
    sounds = torch.nn.utils.rnn.pad_sequence([sample["input_values"] for sample in samples], batch_first=True)
    labels = [sample["labels"] for sample in samples]
    return {
        "input_values": sounds,
        "attention_mask": torch.stack([(torch.arange(sounds.shape[1]) < 1000 * len(one)).long() for one in labels]),
        "labels": torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100),
    }


torch.manual_seed(3)
config = Wav2Vec2Config(
    vocab_size=12,
    hidden_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=192,
    conv_dim=(32, 32, 32, 32),
    conv_kernel=(10, 3, 3, 2),
    conv_stride=(5, 4, 4, 2),
    num_feat_extract_layers=4,
    num_conv_pos_embeddings=16,
    num_conv_pos_embedding_groups=4,
    apply_spec_augment=False,
    layerdrop=0.0,
    ctc_loss_reduction="mean",
    ctc_zero_infinity=True,
)
model = Wav2Vec2ForCTC(config)
model.freeze_feature_encoder()
model.train()
optimizer = torch.optim.AdamW((one for one in model.parameters() if one.requires_grad), lr=3e-4)
loader = DataLoader(Tones(960), batch_size=16, shuffle=True, collate_fn=collate)
for _ in range(300):
    for batch in loader:
        outputs = model(**batch)
        outputs.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
