"""The layer that cuts and measures models, one file for each module."""
