"""The gloo channel: Gloo process groups of two ranks, for large payloads."""
