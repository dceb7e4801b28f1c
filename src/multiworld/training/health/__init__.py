"""What goes wrong without a death: slow ranks, diverged replicas, bad steps, notices to leave."""
