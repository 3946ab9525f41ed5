"""What cheaper layers cost in quality: small trainings with and without them (room training)."""
