"""A data channel over message streams: operations of two ranks, and collectives by their steps."""
