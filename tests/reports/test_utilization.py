"""The waterfall: each step begins where the one before ended."""

import re

from windtunnel.reports.charts import Step, waterfall


def rectangles(svg):
    return [tuple(map(float, found)) for found in re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', svg)]


def test_steps_go_down_to_what_remains():
    steps = [
        Step("framework", 50.0, "#56b4e9", "Python"),
        Step("kernel", 30.0, "#8c939b", "the rest"),
        Step("achieved", 20.0, "#0072b2", "products", is_rest=True),
    ]
    first, second, rest = rectangles(waterfall(steps, "where it goes"))
    per_percent = first[1] / 50

    assert abs(second[0] + second[1] - first[0]) < 0.02
    assert abs(second[1] - 30 * per_percent) < 0.02
    assert abs(rest[1] - 20 * per_percent) < 0.02
    assert abs(rest[0] + rest[1] - second[0]) < 0.02


def test_a_gain_leads_up_again():
    steps = [Step("above peak", -10.0, "#332288", "fewer"), Step("achieved", 110.0, "#0072b2", "x", is_rest=True)]
    gain, rest = rectangles(waterfall(steps, "label"))

    assert abs(gain[0] + gain[1] - rest[0] - rest[1]) < 0.02
    assert gain[1] > 0


def test_labels_from_outside_are_escaped():
    assert "<b>" not in waterfall([Step("<b>", 100.0, "#0072b2", "<b>", is_rest=True)], "<b>")
