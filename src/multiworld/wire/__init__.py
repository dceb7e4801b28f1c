"""The wire: one progress thread, framed and authenticated connections, operations that complete from any thread."""
