"""PyTorch: an LSTM tags drawn sequences of different lengths, packed, so that no time is spent on padding."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence


class Tagger(nn.Module):
    def __init__(self, vocab_size, embedding_dim, hidden_dim, num_tags):
        super().__init__()
        self.embeddings = nn.Embedding(vocab_size, embedding_dim)
        self.lstm = nn.LSTM(embedding_dim, hidden_dim, bidirectional=True, batch_first=True)
        self.tags = nn.Linear(2 * hidden_dim, num_tags)

    def forward(self, sentences, lengths):
        packed = pack_padded_sequence(self.embeddings(sentences), lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.tags(hidden)


torch.manual_seed(1)
data = [torch.randint(0, 500, (int(length),)) for length in torch.randint(10, 50, (2048,))]
model = Tagger(500, 64, 96, 5)
loss_function = nn.CrossEntropyLoss(ignore_index=-1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(300):
    order = torch.randperm(len(data))
    for begin in range(0, len(data), 32):
        batch = [data[number] for number in order[begin : begin + 32]]
        lengths = torch.tensor([len(one) for one in batch])
        sentences = pad_sequence(batch, batch_first=True)
        tags = pad_sequence([one % 5 for one in batch], batch_first=True, padding_value=-1)
        model.zero_grad()
        scores = model(sentences, lengths)
        loss = loss_function(scores.flatten(0, 1), tags.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
