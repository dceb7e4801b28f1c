"""Tests of the mpi channel."""
