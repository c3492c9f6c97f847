"""What a run will need, told before it starts: memory, micro batch, time an epoch."""
