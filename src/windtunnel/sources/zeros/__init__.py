"""Where activations and gradients are zero in real training: watched, stored, read again."""
