"""How long what serves may finish when it is told to end."""

GRACE_S = 10.0
"""Of the members of one host."""
STOP_S = 15.0
"""Of all gateways, to answer what they hold before the replicas leave: when the whole pipeline ends."""
