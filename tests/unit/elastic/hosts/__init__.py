"""The hosts of ``multiworld exec``."""
