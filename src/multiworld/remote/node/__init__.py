"""A node: the process that keeps tensors and runs what the master sends."""
