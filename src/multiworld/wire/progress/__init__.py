"""The progress thread of a manager, the operations that it completes, and the ways to wait for them."""
