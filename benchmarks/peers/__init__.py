"""What the benchmarks compare with: other predictors and a paper's baselines. Nothing in ``src`` imports this."""
