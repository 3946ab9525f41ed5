"""Scripts that run on two processes, and are traced without them."""
