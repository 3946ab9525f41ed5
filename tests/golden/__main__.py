"""``python -m tests.golden``: write the expected documents anew, after a change that is meant to change them."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from tests.golden.commands import COMMANDS
from tests.golden.documents import EXPECTED, run_command
from tests.golden.inputs import write_inputs

with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    write_inputs(Path(folder))
    for name, words in COMMANDS.items():
        document = run_command(words)
        print(name, flush=True)
        (EXPECTED / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
for path in EXPECTED.glob("*.json"):
    if path.stem not in COMMANDS:
        path.unlink()
