"""The control link."""
