"""What an operator sees, below the workloads."""
