"""Unit tests of training, one folder for each of its folders."""
