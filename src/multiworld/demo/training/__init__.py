"""The demo of resilient training: a small language model on four replicas, some of which are killed."""
