"""Explanations, pictures and the offline page.

In: graphs, timelines, answers and receipts that others computed. Out: words, tables, one HTML file.
May not enter: computing results.
"""

from windtunnel.reports.explanation import Explanation, explain
from windtunnel.reports.page import report

__all__ = ["Explanation", "explain", "report"]
