"""PyTorch Geometric: a GIN classifies drawn graphs of different sizes, so every batch has shapes of its own."""

import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import MLP, GINConv, global_add_pool


def drawn(count):
    graphs = []
    for _ in range(count):
        size = int(torch.randint(12, 40, ()))
        is_dense = int(torch.randint(0, 2, ()))
        edges = torch.randint(0, size, (2, size * (3 if is_dense else 2)))
        graphs.append(Data(x=torch.randn(size, 16), edge_index=torch.cat([edges, edges.flip(0)], 1), y=is_dense))
    return graphs


class GIN(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels, num_layers):
        super().__init__()
        self.convs = torch.nn.ModuleList()
        for _ in range(num_layers):
            self.convs.append(GINConv(MLP([in_channels, hidden_channels, hidden_channels]), train_eps=False))
            in_channels = hidden_channels
        self.mlp = MLP([hidden_channels, hidden_channels, out_channels], norm=None, dropout=0.5)

    def forward(self, x, edge_index, batch, batch_size):
        for conv in self.convs:
            x = conv(x, edge_index).relu()
        return self.mlp(global_add_pool(x, batch, batch_size))


torch.manual_seed(12345)
train_loader = DataLoader(drawn(1920), 64, shuffle=True)
test_loader = DataLoader(drawn(192), 64)
model = GIN(16, 64, 2, num_layers=4)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def train():
    model.train()
    total_loss = 0
    for data in train_loader:
        optimizer.zero_grad()
        out = model(data.x, data.edge_index, data.batch, data.num_graphs)
        loss = F.cross_entropy(out, data.y)
        loss.backward()
        optimizer.step()
        total_loss += float(loss) * data.num_graphs
    return total_loss / len(train_loader.dataset)


@torch.no_grad()
def test(loader):
    model.eval()
    total_correct = 0
    for data in loader:
        out = model(data.x, data.edge_index, data.batch, data.num_graphs)
        total_correct += int((out.argmax(dim=-1) == data.y).sum())
    return total_correct / len(loader.dataset)


for epoch in range(1, 501):
    loss = train()
    print(f"Epoch: {epoch:03d}, Loss: {loss:.4f}, Test: {test(test_loader):.4f}")
