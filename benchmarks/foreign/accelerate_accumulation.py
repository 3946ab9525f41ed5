"""Accelerate: gradients of four batches add up before a step, the schedule is prepared too, accuracy after an epoch."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Reviews(Dataset):
    """Drawn sentences of different lengths; what decides is which half of the words is more frequent."""

    def __init__(self, count, seed):
        draw = torch.Generator().manual_seed(seed)
        lengths = torch.randint(24, 65, (count,), generator=draw).tolist()
        self.texts = [torch.randint(1, 2000, (length,), generator=draw) for length in lengths]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        text = self.texts[index]
        return text, int((text > 1000).float().mean() > 0.5)


class Classifier(nn.Module):
    """An encoder whose mean over the words is classified."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(2000, 128, padding_idx=0)
        layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, 2)

    def forward(self, texts):
        is_padding = texts == 0
        hidden = self.encoder(self.words(texts), src_key_padding_mask=is_padding)
        return self.head(hidden.masked_fill(is_padding[..., None], 0).mean(dim=1))


def collate(samples):
    texts, labels = zip(*samples)
    padded = torch.zeros(len(texts), 64, dtype=torch.long)
    for row, text in zip(padded, texts):
        row[: len(text)] = text
    return padded, torch.tensor(labels)


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    torch.manual_seed(42)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    train = DataLoader(Reviews(1024, seed=1), shuffle=True, batch_size=8, collate_fn=collate)
    test = DataLoader(Reviews(128, seed=2), batch_size=16, collate_fn=collate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=1000)
    model, optimizer, train, test, schedule = accelerator.prepare(model, optimizer, train, test, schedule)
    for epoch in range(200):
        model.train()
        for texts, labels in train:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(texts), labels)
                accelerator.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        model.eval()
        right, count = 0, 0
        for texts, labels in test:
            with torch.no_grad():
                guesses = model(texts).argmax(dim=-1)
            guesses, labels = accelerator.gather_for_metrics((guesses, labels))
            right, count = right + int((guesses == labels).sum()), count + len(labels)
        accelerator.print(f"epoch {epoch}: {right / count:.3f}")


if __name__ == "__main__":
    main()
