"""A backward in two parts: the gradients of inputs at once, the gradients of weights when there is time for them."""
