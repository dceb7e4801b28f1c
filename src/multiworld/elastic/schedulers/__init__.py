"""What the launcher knows of schedulers, none of which it is itself: Slurm's variables, Kubernetes' objects, TorchX."""
