"""Remote tensors, without processes."""
