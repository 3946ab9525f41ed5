"""A Megatron-shaped job and the system it ran on."""
