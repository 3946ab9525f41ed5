"""The trainer of a library (Lightning): the loop is its own, the module says what a step is."""

import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")


class Module(lightning.LightningModule):
    """A perceptron with LayerNorm."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(128, 768), nn.LayerNorm(768), nn.Mish(), nn.Linear(768, 768), nn.Mish())
        self.last = nn.Linear(768, 20)

    def training_step(self, batch, _index):
        inputs, labels = batch
        return nn.functional.cross_entropy(self.last(self.net(inputs)), labels)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, amsgrad=True)


torch.manual_seed(11)
loader = DataLoader(TensorDataset(torch.randn(8192, 128), torch.randint(0, 20, (8192,))), batch_size=128)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
lightning.Trainer(max_epochs=10_000, accelerator="cpu", **quiet).fit(Module(), loader)
