"""The hosts of one ``multiworld exec``: how many ranks each gets, and a launcher on each."""
