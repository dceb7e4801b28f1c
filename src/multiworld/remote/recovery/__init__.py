"""A lost node's tensors come back: snapshots, and the log of commands since."""
