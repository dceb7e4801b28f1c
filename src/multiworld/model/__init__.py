"""Cuts and measures models, and handles user code and weights. It knows no workload; importing it loads no torch."""
