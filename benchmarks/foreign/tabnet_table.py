"""pytorch-tabnet: the classifier's own ``fit`` on a drawn table, with a validation part scored after every epoch."""

import numpy as np
from pytorch_tabnet.tab_model import TabNetClassifier

rng = np.random.default_rng(7)
table = rng.normal(size=(10240, 20)).astype(np.float32)
labels = (table[:, 0] * table[:, 1] + table[:, 2] > 0).astype(np.int64)
classifier = TabNetClassifier(n_d=16, n_a=16, n_steps=3, seed=7, verbose=0, device_name="cpu")
classifier.fit(
    table[:8192],
    labels[:8192],
    eval_set=[(table[8192:], labels[8192:])],
    eval_metric=["auc"],
    max_epochs=200,
    patience=0,
    batch_size=256,
    virtual_batch_size=128,
)
