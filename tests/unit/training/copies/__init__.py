"""Unit tests of copies in the memory of hosts."""
