"""Tests of the memory that processes of one host share."""
