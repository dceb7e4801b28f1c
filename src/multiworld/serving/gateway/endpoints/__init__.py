"""What the gateway answers: inference, streams, and what tells of the gateway and of what it serves."""
