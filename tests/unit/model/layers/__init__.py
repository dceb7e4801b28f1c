"""Tests of cutting models into layers to train them."""
