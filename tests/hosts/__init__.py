"""Hosts as network namespaces: partitions, one-way cuts and packet loss."""
