"""Bar words: names, help, errors and docs without the words that ``tests/word_scan.py`` lists.

Counts what is left by kind: loop variables and other names that do not say what they hold, ``most_`` and ``least_`` for
``max_`` and ``min_``, functions that are named by a participle, and archaic words in what users read.
"""

import sys

from tests import word_scan

from benchmarks.bar import report


def main() -> bool:
    """Print the bar."""
    findings = word_scan.find_all()
    left = {kind: len(found) for kind, found in findings.items()}
    return report("words", sum(left.values()), "0 findings", not any(left.values()), left=left)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
