"""Master-worker mode by the names of the original ``torch.distributed`` design; ``multiworld.remote`` does the work."""
