"""Tests of what members and the controller say to each other, without processes."""
