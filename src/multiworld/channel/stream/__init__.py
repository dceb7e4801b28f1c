"""Messages between two ranks over one connection, payloads over it or beside it; and a stream to every other rank."""
