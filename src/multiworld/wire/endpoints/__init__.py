"""The two ends of a new connection: addresses, who dials, who listens, and the handshake between them."""
