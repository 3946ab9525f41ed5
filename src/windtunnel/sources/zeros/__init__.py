"""Where activations and gradients are zero in real training (room sources): watched, stored, read again."""
