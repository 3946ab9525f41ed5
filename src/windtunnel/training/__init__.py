"""Real training of one model by several processes (room training)."""
