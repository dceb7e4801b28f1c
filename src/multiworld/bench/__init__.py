"""What ``multiworld bench`` measures: the channels beside raw ``torch.distributed``, alternating in one run."""
