"""Training scripts of several styles, each run for real on a CPU and without computing anything."""

HEAD = """
import torch
from torch import nn
torch.manual_seed(0)
"""

SLICES = """
import numpy as np
tokens = np.random.default_rng(0).integers(0, 50, 5000)
class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, dropout=0.1)
        self.head = nn.Linear(32, 50)
    def forward(self, x):
        return self.head(self.layer(self.embed(x)))
def batch():
    starts = torch.randint(len(tokens) - 17, (6,))
    x = torch.stack([torch.from_numpy(tokens[i : i + 16].astype(np.int64)) for i in starts])
    y = torch.stack([torch.from_numpy(tokens[i + 1 : i + 17].astype(np.int64)) for i in starts])
    return x, y
model = Decoder()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(20):
    x, y = batch()
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(f"{loss.item():.3f}")
"""

MASKED = """
model = nn.Sequential(nn.Embedding(100, 24), nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 100))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(20):
    tokens = torch.randint(1, 100, (8, 30))
    masked = torch.zeros(8, 30, dtype=torch.bool).scatter(1, torch.rand(8, 30).argsort(1)[:, :11], True)
    logits = model(tokens.masked_fill(masked, 0))
    rows = masked.flatten().nonzero().squeeze(1)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1)[rows], tokens[masked])
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""

ITEMS = """
class Ragged(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(12, 20, batch_first=True)
        self.out = nn.Linear(20, 4)
    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        padded, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.out(padded.mean(1))
model = Ragged()
optimizer = torch.optim.RMSprop(model.parameters())
for step in range(20):
    lengths = torch.tensor([3, 9, 4, 7])
    x = torch.randn(4, lengths.max().item(), 12)
    y = torch.randint(0, 4, (4,))
    loss = nn.functional.cross_entropy(model(x, lengths), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""

CHECKPOINTED = """
from torch.utils.checkpoint import checkpoint
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.drop = nn.Linear(32, 96), nn.Linear(32, 32), nn.Dropout(0.1)
    def forward(self, x):
        q, k, v = (t.view(8, -1, 2, 16).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)
        return x + self.drop(self.out(y.transpose(1, 2).flatten(2)))
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=REENTRANT)
        return x
model = Model()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(20):
    x = torch.randn(8, 160, 32, requires_grad=True)
    loss = model(x).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""

LORA = """
class LoRA(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base
        for p in base.parameters():
            p.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(base.in_features, rank) * 0.01)
        self.b = nn.Parameter(torch.zeros(rank, base.out_features))
        self.drop = nn.Dropout(0.05)
    def forward(self, x):
        return self.base(x) + self.drop(x) @ self.a @ self.b
model = nn.Sequential(LoRA(nn.Linear(64, 128)), nn.GELU(), LoRA(nn.Linear(128, 64)))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
for step in range(40):
    for micro in range(4):
        x = torch.randn(8, 64)
        (model(x) - x).pow(2).mean().div(4).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
"""

TWO_OPTIMIZERS = """
def make(*sizes):
    return nn.Sequential(*(part for a, b in zip(sizes, sizes[1:]) for part in (nn.Linear(a, b), nn.ReLU())))
generator, critic = make(16, 64, 40), make(40, 64, 1)
g_opt = torch.optim.Adam(generator.parameters(), betas=(0.5, 0.9))
c_opt = torch.optim.SGD(critic.parameters(), lr=0.1, momentum=0.9)
for _ in range(20):
    real, z = torch.randn(32, 40), torch.randn(32, 16)
    c_opt.zero_grad()
    (critic(generator(z).detach()).mean() - critic(real).mean()).backward()
    c_opt.step()
    g_opt.zero_grad()
    (-critic(generator(z)).mean()).backward()
    g_opt.step()
"""

LOADED = """
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler
class Images(Dataset):
    def __len__(self):
        return 200
    def __getitem__(self, i):
        g = torch.Generator().manual_seed(int(i))
        return torch.randn(3, 16, 16, generator=g), i % 5
model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                      nn.Conv2d(8, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
best = 0.0
loader = DataLoader(Images(), 20, sampler=WeightedRandomSampler(torch.ones(200), 200), num_workers=0, pin_memory=False)
for epoch in range(6):
    running = 0.0
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        running += loss.item()
    schedule.step()
    print(running / len(loader))
"""

MIXED = """
model = nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99))
for _ in range(20):
    x, y = torch.randn(48, 64), torch.randint(0, 8, (48,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    if not torch.isfinite(loss):
        raise SystemExit("diverged")
    optimizer.zero_grad(); loss.backward(); optimizer.step(); ema.update_parameters(model)
"""

PENALTY = """
model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), amsgrad=True)
for _ in range(20):
    x = torch.randn(16, 20, requires_grad=True)
    out = model(x)
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    loss = (slope.norm(dim=1) - 1).pow(2).mean() + out.mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""

TIME_FIRST = """
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(80, 16), nn.LSTM(16, 24), nn.Linear(24, 6)
    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0])
model = Tagger()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(20):
    x, y = torch.randint(0, 80, (35, 20)), torch.randint(0, 6, (35, 20))
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""

REAL = {
    "slices": SLICES,
    "masked": MASKED,
    "items": ITEMS,
    "checkpointed": CHECKPOINTED.replace("REENTRANT", "False"),
    "reentrant": CHECKPOINTED.replace("REENTRANT", "True"),
    "lora": LORA,
    "two optimizers": TWO_OPTIMIZERS,
    "loaded": LOADED,
    "mixed": MIXED,
    "penalty": PENALTY,
    "time first": TIME_FIRST,
}
"""Scripts that a CPU runs."""

REAL = {name: HEAD + text for name, text in REAL.items()}

CUDA = {
    "cuda()": """
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(20):
    x, y = torch.randn(16, 64).pin_memory().cuda(non_blocking=True), torch.randint(0, 8, (16,)).cuda()
    optimizer.zero_grad(); nn.functional.cross_entropy(model(x), y).backward(); optimizer.step()
    torch.cuda.synchronize()
print(torch.cuda.max_memory_allocated())
""",
    "scaler": """
device = torch.device("cuda", 0)
torch.cuda.set_device(device)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.cuda.amp.GradScaler()
for _ in range(20):
    x, y = torch.randn(16, 64, device=device), torch.randint(0, 8, (16,), device=device)
    with torch.cuda.amp.autocast():
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    "streams": """
assert torch.cuda.is_available(), "this needs a GPU"
model = nn.Linear(64, 64).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
side, begin, end = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
generator = torch.Generator(device="cuda").manual_seed(0)
loader = torch.utils.data.DataLoader(torch.randn(400, 64), batch_size=16, num_workers=2, pin_memory=True)
for _ in range(4):
    for batch in loader:
        begin.record()
        with torch.cuda.stream(side):
            batch = batch.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        batch.record_stream(torch.cuda.current_stream())
        noise = torch.randn(16, 64, device="cuda", generator=generator)
        loss = (model(batch + noise) - batch).pow(2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        end.record(); torch.cuda.synchronize(); begin.elapsed_time(end)
""",
    "streams of any accelerator": """
side, done = torch.Stream("cuda"), torch.Event("cuda")
model = nn.Linear(64, 64).to(side.device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    main = torch.accelerator.current_stream()
    with side:
        batch = torch.randn(16, 64, device="cuda")
        done.record()
    main.wait_event(done)
    loss = model(batch).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    "compiled": """
model = torch.compile(nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8)).cuda())
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(20):
    x, y = torch.randn(16, 64, device="cuda"), torch.randint(0, 8, (16,), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    "default device": """
torch.set_default_device("cuda")
model = nn.Sequential(nn.Linear(64, 128), nn.Dropout(0.1), nn.Linear(128, 8))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(20):
    x, y = torch.randn(16, 64), torch.randint(0, 8, (16,))
    optimizer.zero_grad(); nn.functional.cross_entropy(model(x), y).backward(); optimizer.step()
    if torch.cuda.memory_allocated() > torch.cuda.get_device_properties(0).total_memory:
        break
""",
}
"""Scripts that need a CUDA device."""

CUDA = {name: HEAD + text for name, text in CUDA.items()}
