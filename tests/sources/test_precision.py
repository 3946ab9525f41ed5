"""What a capture advises where iterations vary."""

from __future__ import annotations

from windtunnel.sources.torch.overhead import precision


def test_some_more_iterations_are_advised_and_never_tens_of_thousands():
    """17,610 iterations were advice; a machine that is disturbed so much has to be quiet first."""
    varying = precision([100, 112, 100, 112, 100, 112, 100, 112] * 3)
    disturbed = precision([100, 120, 900, 5000, 110, 90, 4000, 150])

    assert "would make that ±2.0 %" in varying["note"]
    assert "capture again on a quiet machine" in disturbed["note"]
    assert "--iterations" not in disturbed["note"]
