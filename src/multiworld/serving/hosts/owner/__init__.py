"""The process that starts a host process, and the line between the two."""
