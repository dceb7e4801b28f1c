"""What torchrun's agent does beside its workers, if variables or the program ask for it."""
