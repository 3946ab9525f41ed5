"""Training scripts as users write them, without windtunnel: what the stages of ``benchmarks.gpu`` record and change."""
