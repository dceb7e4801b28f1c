"""Of dialing and listening."""
