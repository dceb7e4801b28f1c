"""The modes of the original design, without processes."""
