"""Planning of a run: memory, micro batch and time per epoch, predicted before it starts."""
