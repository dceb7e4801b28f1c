"""What resilient training promises, measured beside plain DDP, torchrun with checkpoints, and torchft."""
