"""What cheaper layers cost in quality: small trainings with and without them."""
