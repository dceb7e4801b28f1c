"""What torchrun's agent does beside its workers."""
