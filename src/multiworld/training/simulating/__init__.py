"""What a training does under failures that are replayed: no process, no clock, only arithmetic. Pure."""
