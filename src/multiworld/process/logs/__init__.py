"""The output of processes: pipes read to their end, lines with a prefix on the console, bytes in files."""
