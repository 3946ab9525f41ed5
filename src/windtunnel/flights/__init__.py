"""Room flights: what was predicted is really run, side by side with what was, and the error is kept.

In: a script, a step function or a workload, and the name of a what-if. Out: a receipt in the ledger, and from all
of them the intervals of later predictions. One file per family of flights, each registered under the name of its
what-if; importing this room needs no torch.

Internal modules: ``deferred_logits``, ``paused_processes``, ``process_variant``, ``run``, ``step_variant``.
"""

from windtunnel import registry
from windtunnel.flights.intervals import Backing, interval_of, with_intervals
from windtunnel.flights.ledger import Ledger, default_ledger
from windtunnel.flights.receipt import Receipt, model_fingerprint, table_of
from windtunnel.flights.run import fly, verify
from windtunnel.flights.several import Outcome, verify_several

__all__ = [
    "Backing",
    "Ledger",
    "Outcome",
    "Receipt",
    "default_ledger",
    "fly",
    "interval_of",
    "model_fingerprint",
    "table_of",
    "verify",
    "verify_several",
    "with_intervals",
]

registry.discover(__name__, skip=["deferred_logits", "process_variant"])
