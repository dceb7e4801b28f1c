"""Tests of the nccl channel."""
