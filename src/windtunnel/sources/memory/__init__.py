"""Where the memory of a training step goes (room sources): every storage by category, layer and source line."""
