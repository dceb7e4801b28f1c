"""Unit tests of serving, one folder for each of its folders."""
